"""A training run: steps, evaluations and checkpoints in their order, from wherever the run directory stands."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlep.algorithms.evaluation import EvaluationReport
from rlep.core.errors import ActorLost, CheckpointError, ConfigError, LearnerLost, RlepError, WeightsLost
from rlep.core.plural import counted
from rlep.core.types import Int64Array, Prompt, UpdateOutcome
from rlep.data.prompts import PromptOrder, PromptSet
from rlep.driver.checkpoint import Checkpoint, RunState
from rlep.driver.clock import Clock
from rlep.driver.context import Run, Step
from rlep.driver.evaluate import Decode, evaluate_policy, write_samples
from rlep.driver.idle import IdleSteps
from rlep.driver.ledger import NO_COMPUTE, Compute, Ledger, compute_of
from rlep.driver.ports import Trainers
from rlep.driver.replays import replays_at
from rlep.driver.run_directory import RunDirectory, how_to_accept
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.metrics.catalogue import MetricValue, evaluation_metrics, metric_for
from rlep.metrics.logs import plain


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a run trains on and is evaluated on."""

    train: PromptSet
    evaluation: tuple[Prompt, ...]
    pool_digest: str
    """Content of the replay pool; empty with M = 0."""
    decode: Decode


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run keeps of a step."""

    updates: tuple[UpdateOutcome, ...]
    metrics: dict[str, MetricValue]
    replayed: tuple[str, ...]
    """Content ids of the replays it trained on."""
    compute: Compute = NO_COMPUTE


TrainStep = Callable[[Step, Sequence[Prompt]], Awaitable[Trained]]
"""Trains on a step's prompts under version k and leaves every generator at k + 1."""


async def rlep_step(
    step: Step,
    prompts: Sequence[Prompt],
    make: Callable[[Step, Sequence[Prompt]], Awaitable[StepOutcome]] = run_step,
) -> Trained:
    """The step of phases 1 and 2, by ``run_step`` or another one with the same result."""
    outcome = await make(step, prompts)
    live = step.trainers.live
    learned = await live.learn(step.number, outcome.mini_batches, step.visits) if live else {}
    groups = [group for one in outcome.mini_batches for group in one.groups]
    replayed = tuple(member.content_id for group in groups for member in group.replays)
    compute = compute_of(step, (one.batch for one in outcome.mini_batches))
    return Trained(outcome.updates, step_metrics(outcome) | learned, replayed, compute)


class Training:
    """One training run over an open run directory."""

    def __init__(
        self,
        run: Run,
        trainers: Trainers,
        data: TrainingData,
        store: RunDirectory,
        train: TrainStep,
    ) -> None:
        """``train`` makes one step.

        Raises:
            DataError: a step wants more prompts than there are.
            ConfigError: ``checkpoint.best`` names no metric.
        """
        self._run, self._trainers, self._data, self._store, self._train = run, trainers, data, store, train
        self._order = PromptOrder(len(data.train), run.config.rollout.prompts, run.config.run.seed)
        self._started = store.resumed
        self._used: Counter[str] = Counter()
        """Content id → steps that replayed it, where ``replay.selection`` needs it."""
        _check_best(run.config.checkpoint.best, {prompt.data_source for prompt in data.evaluation} | {"all"})
        self._ledger = Ledger()
        self._idle = IdleSteps()
        self._unlogged: dict[str, MetricValue] = {}
        """Metrics for the next step's line: this step's is already written."""
        self._clock = Clock()
        """Of the step in progress."""
        self._unsaved: RunState | None = None
        """What a checkpoint of the last complete step would hold, until it is begun."""
        self._last: Checkpoint | None = None

    async def run(self) -> Checkpoint:
        """Train to the last step; returns the final checkpoint. A lost learner is restored from the last one.

        Where no generator has the weights any more, and the learner still has, the step is begun again.
        Cancelled, it first writes a checkpoint of the last complete step, unless the next one's updates have begun.
        """
        final: Checkpoint | None = None
        try:
            while final is None:
                try:
                    final = await self._until_done()
                except WeightsLost as error:
                    await self._trainers.rollouts.drop()
                    if "update" in self._clock.begun:  # the learner has others by now
                        await self._restart_learner(error)
                        continue
                    self._run.progress.note(f"{error}; sending them again")
                    if self._unsaved is not None:
                        await self._save(self._unsaved)
                    await self._store.checkpoints.finished()
                except LearnerLost as error:
                    await self._trainers.rollouts.drop()
                    await self._restart_learner(error)
        except asyncio.CancelledError:
            await self._save_interrupted()
            raise
        finally:
            await self._trainers.rollouts.drop()
            await self._store.checkpoints.abandon()
        self._store.events.log("run_finished", self._run.config.run.steps)
        return final

    async def _restart_learner(self, lost: ActorLost) -> None:
        """Start all ranks again; the error of a learner that cannot be says where the last failure is written down."""
        self._store.events.log("actor_lost", actor="learner", error=str(lost))
        log = self._store.keep_log("learner.err", str(lost))
        reason = str(lost).partition("\n")[0]  # a traceback follows
        self._run.progress.note(f"learner lost ({reason}); starting its ranks again")
        await self._store.checkpoints.abandon()
        try:
            await self._trainers.learner.restart()
        except LearnerLost as error:
            raise LearnerLost(f"{error}. Log: {log}") from error
        self._store.events.log("actor_restarted", actor="learner")

    async def _until_done(self) -> Checkpoint:
        checkpoint = await self._restore()
        step = checkpoint.state.step if checkpoint else 0
        metrics = dict(checkpoint.state.unrecorded) if checkpoint else {}
        steps, every = self._run.config.run.steps, self._run.config.checkpoint.every
        if step < steps or metrics:
            await self._trainers.weights.publish(step)
        if step == 0:
            await self._evaluate(0)
        while step < steps or metrics:
            if not metrics:
                metrics = await self._step(step) | self._unlogged
                self._unlogged.clear()
                step += 1
                self._clock, self._unsaved = Clock(), self._state(step, {}, unrecorded=metrics)
            metrics |= await self._evaluate(step)
            self._store.metrics.log(step - 1, metrics)
            self._unsaved = self._state(step, metrics)
            if step % every == 0 or step == steps:
                await self._save(self._unsaved)
            metrics = {}
        checkpoint = await self._store.checkpoints.finished() or checkpoint
        if checkpoint is None:
            raise CheckpointError(f"{self._store.path}: the run ended without a checkpoint")
        self._idle.check_end(self._run.config, step)
        return checkpoint

    def _planned(self, step: int) -> tuple[Step, list[Prompt]]:
        """A step by its number, and its prompts: a function of the run's seed."""
        prompts = self._prompts(self._order.step(step))
        position = {prompt.id: index for index, prompt in enumerate(self._data.train.prompts)}

        def more(round_number: int, count: int, used: Sequence[Prompt]) -> list[Prompt]:
            taken = [position[prompt.id] for prompt in used]
            return self._prompts(self._order.refill(step, round_number, count, taken))

        replays = replays_at(self._run.config, step)
        return Step(self._run, self._trainers, step, replays, more, used=self._used), prompts

    async def _step(self, step: int) -> dict[str, MetricValue]:
        number, prompts = self._planned(step)
        self._clock = number.clock
        generators = self._run.roles.generators
        before = generators.reissued
        trained = await self._train(number, prompts)
        since = generators.reissued - before
        again: dict[str, MetricValue] = {"rollout/retried": since.retried, "rollout/dropped": since.dropped}
        if self._run.config.replay.selection == "least-used":
            self._used.update(trained.replayed)
        for said in self._idle.add(self._run.config, trained.metrics, number.replays):
            self._run.progress.note(f"step {step}: {said}")
        for index, update in enumerate(trained.updates):
            if update.skipped:
                self._store.events.log("update_skipped", step, update=index, reason=update.skipped)
        again |= self._ledger.add(trained.compute, number.visits)
        return trained.metrics | again | {"prompts/epoch": step // self._order.steps_per_epoch}

    async def _evaluate(self, step: int) -> dict[str, MetricValue]:
        """Evaluate when it is due after ``step`` steps."""
        rule, last = self._run.config.evaluation, step == self._run.config.run.steps
        due = step == 0 or last or (rule.every > 0 and step % rule.every == 0)
        if not due or not self._data.evaluation:
            return {}
        samples = (rule.final_samples or rule.samples) if last else rule.samples
        begun = time.perf_counter()
        evaluated = await evaluate_policy(self._run, self._data.evaluation, samples)
        rows = evaluated.report.to_json()
        self._store.evaluations.log(step, rows, wall_s=self._store.metrics.wall_s)
        write_samples(self._store.path / "samples" / f"step-{step:06d}.parquet", evaluated, self._data.decode)
        self._store.events.log("evaluation_finished", step, avg=rows[-1]["avg"])
        self._run.progress.note(f"after {counted(step, 'step')}: {_headline(evaluated.report)}")
        return evaluation_metrics(rows) | {"time/evaluate": time.perf_counter() - begun}

    def _state(
        self, step: int, metrics: Mapping[str, MetricValue], unrecorded: Mapping[str, MetricValue] | None = None
    ) -> RunState:
        """What a checkpoint holds after ``step`` steps; ``metrics`` are the last one's, with its evaluation."""
        best = self._run.config.checkpoint.best
        score = metrics.get(best) if best else None
        return RunState(
            step,
            self._data.train.digest,
            self._run.tokenizer_digest,
            self._data.pool_digest,
            best or "",
            score if isinstance(score, int | float) else None,
            dict(self._used),
            {name: plain(value) for name, value in (unrecorded or {}).items()},
            self._idle.replays,
            asdict(self._ledger.compute),
            sorted(self._ledger.solved),
            self._run.template_digest,
            self._idle.updates,
        )

    async def _save(self, state: RunState) -> None:
        begun = time.perf_counter()
        self._unsaved = None
        live = self._trainers.live
        await self._store.checkpoints.save(
            self._trainers.learner, state, self._saved, live.write if live else lambda _: None
        )
        self._unlogged["time/checkpoint"] = time.perf_counter() - begun

    def _saved(self, checkpoint: Checkpoint) -> None:
        state, self._last = checkpoint.state, checkpoint
        self._store.events.log("checkpoint_saved", state.step, path=checkpoint.path.name, score=state.score)

    async def _save_interrupted(self) -> None:
        """Save the last complete step where the learner still has its weights; say from where the run will go on."""
        note = self._run.progress.note
        await self._trainers.rollouts.drop()
        try:
            if self._unsaved is not None and "update" not in self._clock.begun:
                note(f"writing a checkpoint after step {self._unsaved.step} …")
                await self._save(self._unsaved)
            await self._store.checkpoints.finished()
        except RlepError as error:
            note(f"no checkpoint was written: {error}")
        steps = self._run.config.run.steps
        after = f"after step {self._last.state.step} of {steps}" if self._last else "from its beginning"
        note(f"stopped: the same command continues the run {after}")

    async def _restore(self) -> Checkpoint | None:
        self._unlogged.clear()
        self._used.clear()
        self._unsaved = None
        self._ledger, self._idle = Ledger(), IdleSteps()
        checkpoint, refused = await asyncio.to_thread(self._store.checkpoints.latest)
        for reason in refused:
            self._store.events.log("checkpoint_refused", reason=reason)
            self._run.progress.note(f"skipped: {reason}")
        step = checkpoint.state.step if checkpoint else 0
        if checkpoint is not None:
            self._check_state(checkpoint.path, checkpoint.state)
            self._used.update(checkpoint.state.used)
            self._idle = IdleSteps(checkpoint.state.idle, checkpoint.state.untrained)
            self._ledger.restore(checkpoint.state.compute, checkpoint.state.solved)
            await self._trainers.learner.load(checkpoint.path)
            self._run.progress.note(f"resuming after step {step}")
        if (live := self._trainers.live) is not None:
            accept = "pool" in self._run.config.checkpoint.accept
            await live.restore(checkpoint.path if checkpoint else None, accept=accept)
        self._last = checkpoint
        self._store.truncate_from(step, evaluated=checkpoint is None or not checkpoint.state.unrecorded)
        self._store.events.log("run_resumed" if self._started else "run_started", step)
        self._started = True
        return checkpoint

    def _check_state(self, path: Path, state: RunState) -> None:
        expected = {
            "data": (state.data_digest, self._data.train.digest),
            "tokenizer": (state.tokenizer_digest, self._run.tokenizer_digest),
            "pool": (state.pool_digest, self._data.pool_digest),
            "template": (state.template_digest or self._run.template_digest, self._run.template_digest),
        }
        for name, (before, now) in expected.items():
            if before != now and name not in self._run.config.checkpoint.accept:
                raise CheckpointError(
                    f"checkpoint {path} was made with {name}_digest {before}, now it is {now}{how_to_accept(name)}"
                )
            if before != now:
                self._run.progress.note(f"continuing with another {name}: {name}_digest was {before}, now it is {now}")

    def _prompts(self, indices: Int64Array) -> list[Prompt]:
        return [self._data.train.prompts[index] for index in indices]


def _check_best(metric: str | None, sources: set[str]) -> None:
    """Refuse a ``checkpoint.best`` that no step could have."""
    if metric is None:
        return
    try:
        known = metric_for(metric)
    except ValueError as error:
        raise ConfigError(f"checkpoint.best = {metric!r}: {error}") from None
    if known.kind == "list":
        raise ConfigError(f"checkpoint.best = {metric!r} is a list of numbers; choose a metric that is one number")
    if metric.startswith("evaluation/") and not metric.startswith(tuple(f"evaluation/{name}/" for name in sources)):
        raise ConfigError(f"checkpoint.best = {metric!r}: evaluated are {', '.join(sorted(sources))}")


def _headline(report: EvaluationReport) -> str:
    return ", ".join(f"{row.data_source} avg@{row.samples} {100 * row.avg.value:.1f} %" for row in report.sources)
