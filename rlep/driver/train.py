"""A training run: steps, evaluations and checkpoints in their order, from wherever the run directory stands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlep.algorithms.evaluation import EvaluationReport, ks_for
from rlep.config.schema import Config
from rlep.core.errors import (
    ActorLost,
    CheckpointError,
    ConfigError,
    JudgeAway,
    LearnerLost,
    RlepError,
    WeightsLost,
    first_line,
)
from rlep.core.plural import counted
from rlep.core.types import Int64Array, Prompt
from rlep.data.prompts import PromptSet, order_of
from rlep.driver.checkpoint import Checkpoint
from rlep.driver.clock import Clock
from rlep.driver.context import Run, Step, Trainers
from rlep.driver.evaluate import Decode, evaluate_policy, write_samples
from rlep.driver.idle import IdleSteps
from rlep.driver.live_replay import LiveReplay
from rlep.driver.run_directory import RunDirectory, changed_parts, how_to_accept
from rlep.driver.run_state import RunState, run_metrics
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.metrics.catalogue import MetricValue, evaluation_metrics, metric_for


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Prompts that a run trains on and is evaluated on."""

    train: PromptSet
    evaluation: tuple[Prompt, ...]
    pool_digest: str
    """Content of the replay pool; empty with M = 0."""
    decode: Decode


MakeStep = Callable[[Step, Sequence[Prompt]], Awaitable[StepOutcome]]
"""Trains on a step's prompts under version k and leaves every generator at k + 1: ``run_step``, or another with its result."""
BeforeStep = Callable[[Step], Awaitable[None]]
AfterStep = Callable[[StepOutcome, Mapping[str, MetricValue]], Awaitable[Mapping[str, MetricValue]]]
"""Is given a complete step and its metrics so far; returns further ones."""


class Training:
    """One training run over an open run directory.

    A step is planned from the run's state, made by ``make``, and followed by the hooks ``after`` in their order; then the
    state is replaced by the next one. A checkpoint holds that state: a run is restored by taking it from there.
    """

    def __init__(
        self,
        run: Run,
        trainers: Trainers,
        data: TrainingData,
        store: RunDirectory,
        make: MakeStep = run_step,
        *,
        live: LiveReplay | None = None,
        before: Sequence[BeforeStep] = (),
        after: Sequence[AfterStep] = (),
    ) -> None:
        """``live``: where ``trainers.pool`` is filled by the run itself.

        Raises:
            DataError: a step wants more prompts than there are.
            ConfigError: ``checkpoint.best`` names no metric.
        """
        self._run, self._trainers, self._data, self._store = run, trainers, data, store
        self._make, self._live, self._before, self._after = make, live, before, after
        self._order = order_of(run.config, data.train.report)
        _check_best(run.config, {prompt.data_source for prompt in data.evaluation})
        self._started = store.resumed
        self._state = self._beginning
        self._kept = self._state
        """The state that a checkpoint holds, is being written to one, or begins the run."""
        self._last: Checkpoint | None = None
        self._clock = Clock()
        """Of the step in progress."""

    @property
    def _beginning(self) -> RunState:
        run, data = self._run, self._data
        inputs = data.train.digest, run.tokenizer_digest, data.pool_digest
        return RunState(0, *inputs, template_digest=run.template_digest, grader_digest=run.grader_digest)

    async def run(self) -> Checkpoint:
        """Train to the last step; returns the final checkpoint. A lost learner is restored from the last one.

        Where no generator has the weights any more, and the learner still has, the step is begun again.
        Cancelled, or ended by an error, it first writes a checkpoint of the last complete step, unless the next one's updates
        have begun, or a checkpoint is what failed.
        """
        final: Checkpoint | None = None
        try:
            while final is None:
                try:
                    final = await self._until_done()
                except (WeightsLost, LearnerLost) as error:
                    await self._trainers.rollouts.drop()
                    await self._recover(error)
        except (asyncio.CancelledError, JudgeAway):
            await self._save_interrupted()
            raise
        except RlepError:
            if self._state is not self._kept:  # steps that no checkpoint has
                await self._save_interrupted()
            raise
        finally:
            await self._trainers.rollouts.drop()
            await self._store.checkpoints.abandon()
        self._store.events.log("run_finished", self._run.config.run.steps)
        return final

    async def _recover(self, lost: ActorLost) -> None:
        """Keep what the learner has where only the generators have lost it; start the learner again in any other case."""
        # After an update of the step the learner has other weights than the generators had.
        if isinstance(lost, WeightsLost) and "update" not in self._clock.begun:
            self._run.progress.note(f"{lost}; sending them again")
            try:
                if self._state is not self._kept:
                    await self._save()
                await self._store.checkpoints.finished()
            except LearnerLost as error:
                lost = error
            else:
                return
        await self._restart_learner(lost)

    async def _restart_learner(self, lost: ActorLost) -> None:
        """Start all ranks again; the error of a learner that cannot be says where the last failure is written down."""
        lost_at, self._kept = (
            time.monotonic(),
            self._state,
        )  # the new ranks have other weights: an interruption has nothing to save
        self._store.events.log("actor_lost", actor="learner", error=str(lost))
        log = self._store.keep_log("learner.err", str(lost))
        reason = first_line(lost)  # a traceback follows
        self._run.progress.note(f"learner lost ({reason}); starting its ranks again")
        await self._store.checkpoints.abandon()
        try:
            await self._trainers.learner.restart()
        except LearnerLost as error:
            raise LearnerLost(f"{error}. Log: {log}") from error
        self._store.events.log("actor_restarted", actor="learner")
        self._run.progress.note(f"learner is back, {time.monotonic() - lost_at:.0f} s after its loss")

    async def _until_done(self) -> Checkpoint:
        await self._restore()
        config, written = self._run.config, dict[str, MetricValue]()
        steps, every, best = config.run.steps, config.checkpoint.every, config.checkpoint.best
        if self._state.step < steps or self._state.unrecorded:
            await self._trainers.weights.publish(self._state.step)
        if self._state.step == 0:
            await self._evaluate(0)
        while self._state.step < steps or self._state.unrecorded:
            if not self._state.unrecorded:
                await self._step(self._state.step, written)
            step = self._state.step
            metrics = dict(self._state.unrecorded) | await self._evaluate(step)
            self._store.metrics.log(step - 1, metrics)
            self._state = self._state.record(metrics, best, config.evaluation.compute)
            written = await self._save() if step % every == 0 or step == steps else {}
        checkpoint = await self._store.checkpoints.finished() or self._last
        if checkpoint is None:
            raise CheckpointError(f"{self._store.path}: the run ended without a checkpoint")
        IdleSteps(updates=self._state.untrained).check_end(config, self._state.step)
        return checkpoint

    async def _step(self, number: int, more: Mapping[str, MetricValue]) -> None:
        """Make one step and replace the state by the one after it; ``more`` metrics join its own."""
        config, generators = self._run.config, self._run.roles.generators
        step, prompts = self._plan(number)
        self._clock, before = step.clock, generators.reissued
        for begin in self._before:
            await begin(step)
        outcome = await self._make(step, prompts)
        metrics = step_metrics(outcome)
        metrics |= self._trainers.method.learn(number, step.visits)
        for follow in self._after:
            metrics |= await follow(outcome, metrics)
        since = generators.reissued - before
        metrics |= {"rollout/retried": since.retried, "rollout/dropped": since.dropped}
        state = self._state.add_step(outcome, keep_used=config.replay.selection == "least-used")
        # Through JSON: an undisturbed run goes on with what a continued one would read.
        state = replace(state, method=json.loads(json.dumps(self._trainers.method.state())))
        metrics |= run_metrics(self._state, state, outcome)
        idle = IdleSteps(state.idle, state.untrained).add(
            config, metrics, wanted=step.replays > 0 and step.accepting > 0
        )
        for text in idle.notes(config, metrics):
            self._run.progress.note(f"step {number}: {text}")
        for index, update in enumerate(outcome.updates):
            if update.skipped:
                self._store.events.log("update_skipped", number, update=index, reason=update.skipped)
        metrics |= {"prompts/epoch": number // self._order.steps_per_epoch} | dict(more)
        self._state, self._clock = state.with_idle(idle).with_metrics(metrics), Clock()

    def _plan(self, step: int) -> tuple[Step, list[Prompt]]:
        """Return a step by its number, and its prompts: a function of the run's seed."""
        prompts = self._prompts(self._order.step(step))
        position = {prompt.id: index for index, prompt in enumerate(self._data.train.prompts)}
        held = self._live.stored() if self._live else {}
        stored = {prompt_id: count for prompt_id, count in held.items() if prompt_id in position}
        chosen = self._trainers.method.questions(step, [prompt.id for prompt in prompts], stored)
        if len({*chosen} & position.keys()) != len(prompts) or len(chosen) != len(prompts):
            raise ConfigError(
                f"replay.method = {self._run.config.replay.method!r}: questions() of step {step} returned "
                f"{len({*chosen} & position.keys())} different training prompts, a step takes {len(prompts)}"
            )
        prompts = [self._data.train.prompts[position[prompt_id]] for prompt_id in chosen]

        def more(round_number: int, count: int, used: Sequence[Prompt]) -> list[Prompt]:
            taken = [position[prompt.id] for prompt in used]
            return self._prompts(self._order.refill(step, round_number, count, taken))

        replays = self._run.config.replay.count_at(step, self._run.config.run.steps)
        return Step(self._run, self._trainers, step, replays, more, used=self._state.used), prompts

    async def _evaluate(self, step: int) -> dict[str, MetricValue]:
        """Evaluate when it is due after ``step`` steps."""
        rule, last = self._run.config.evaluation, step == self._run.config.run.steps
        reached = self._state.reached(rule.compute)
        due = reached > self._state.evaluated if rule.compute else rule.every > 0 and step % rule.every == 0
        if not (due or step == 0 or last) or not self._data.evaluation:
            return {}
        full = last or (bool(rule.compute) and reached == len(rule.compute))
        samples = (rule.final_samples if full else rule.first_samples if step == 0 else None) or rule.samples
        begun = time.perf_counter()
        evaluated = await evaluate_policy(self._run, self._data.evaluation, samples)
        rows = evaluated.report.to_json()
        self._store.evaluations.log(step, rows, wall_s=self._store.metrics.wall_s)
        write_samples(self._store.path / "samples" / f"step-{step:06d}.parquet", evaluated, self._data.decode)
        self._store.events.log("evaluation_finished", step, avg=rows[-1]["avg"])
        self._run.progress.note(f"after {counted(step, 'step')}: {_headline(evaluated.report)}")
        return evaluation_metrics(rows) | {"time/evaluate": time.perf_counter() - begun}

    async def _save(self) -> dict[str, MetricValue]:
        """Begin a checkpoint of the state; returns the time that took as the next step's metric."""
        begun = time.perf_counter()
        write = self._live.write if self._live else lambda _: None
        try:
            await self._store.checkpoints.save(self._trainers.learner, self._state, self._log_saved, write)
        except RlepError:
            self._kept = self._state  # nobody tries that again
            raise
        self._kept = self._state  # an interruption before has it saved again
        return {"time/checkpoint": time.perf_counter() - begun}

    def _log_saved(self, checkpoint: Checkpoint) -> None:
        state, self._last = checkpoint.state, checkpoint
        self._store.events.log("checkpoint_saved", state.step, path=checkpoint.path.name, score=state.score)

    async def _save_interrupted(self) -> None:
        """Save the last complete step where the learner still has its weights; say from where the run will go on."""
        note = self._run.progress.note
        await self._trainers.rollouts.drop()
        try:
            if self._state is not self._kept and "update" not in self._clock.begun:
                note(f"writing a checkpoint after step {self._state.step} …")
                await self._save()
            await self._store.checkpoints.finished()
        except RlepError as error:
            note(f"no checkpoint was written: {error}")
        steps = self._run.config.run.steps
        after = f"after step {self._last.state.step} of {steps}" if self._last else "from its beginning"
        note(f"stopped: the same command continues the run {after}")

    async def _restore(self) -> None:
        """Take the state from the newest intact checkpoint, or begin; learner, live replay and records follow it."""
        checkpoint, refused = await asyncio.to_thread(self._store.checkpoints.latest)
        for reason in refused:
            self._store.events.log("checkpoint_refused", reason=reason)
            self._run.progress.note(f"skipped: {reason}")
        state = self._beginning
        if checkpoint is not None:
            self._check_state(checkpoint.path, checkpoint.state)
            inputs = {
                name: getattr(state, f"{name}_digest") for name in ("data", "tokenizer", "pool", "template", "grader")
            }
            state = replace(checkpoint.state, **{f"{name}_digest": digest for name, digest in inputs.items()})
            if not state.unrecorded:  # the points may have changed since
                state = replace(state, evaluated=state.reached(self._run.config.evaluation.compute))
            await self._trainers.learner.load(checkpoint.path)
            self._run.progress.note(f"resuming after step {state.step}")
        if self._live is not None:
            accept = "pool" in self._run.config.checkpoint.accept
            await self._live.restore(checkpoint.path if checkpoint else None, accept=accept)
        self._trainers.method.restore(state.method)
        self._state = self._kept = state
        self._last, self._clock = checkpoint, Clock()
        self._store.truncate_from(state.step, evaluated=not state.unrecorded)
        self._store.events.log("run_resumed" if self._started else "run_started", state.step)
        self._started = True

    def _check_state(self, path: Path, state: RunState) -> None:
        expected = {
            "data": (state.data_digest, self._data.train.digest),
            "tokenizer": (state.tokenizer_digest, self._run.tokenizer_digest),
            "pool": (state.pool_digest, self._data.pool_digest),
            "template": (state.template_digest or self._run.template_digest, self._run.template_digest),
            "grader": (state.grader_digest or self._run.grader_digest, self._run.grader_digest),
        }
        for name, digests in expected.items():
            before, now = changed_parts(*digests)
            if before != now and name not in self._run.config.checkpoint.accept:
                raise CheckpointError(
                    f"checkpoint {path} was made with {name}_digest {before}, now it is {now}{how_to_accept(name)}"
                )
            if before != now:
                self._run.progress.note(f"continuing with another {name}: {name}_digest was {before}, now it is {now}")

    def _prompts(self, indices: Int64Array) -> list[Prompt]:
        return [self._data.train.prompts[index] for index in indices]


def _check_best(config: Config, sources: set[str]) -> None:
    """Refuse a ``checkpoint.best`` that no step could have, or only the last."""
    metric, samples = config.checkpoint.best, config.evaluation.samples
    if metric is None:
        return
    try:
        known = metric_for(metric)
    except ValueError as error:
        raise ConfigError(f"checkpoint.best = {metric!r}: {error}") from None
    if known.kind == "list":
        raise ConfigError(f"checkpoint.best = {metric!r} is a list of numbers; choose a metric that is one number")
    if not metric.startswith("evaluation/"):
        return
    names = sources | {"all"} if len(sources) > 1 else sources
    if not metric.startswith(tuple(f"evaluation/{name}/" for name in names)):
        raise ConfigError(f"checkpoint.best = {metric!r}: evaluated are {', '.join(sorted(names)) or 'no questions'}")
    head, _, k = metric.rpartition("/")
    if head.endswith("/pass") and k not in map(str, ks := ks_for(samples)):
        raise ConfigError(
            f"checkpoint.best = {metric!r}: of evaluation.samples = {samples} pass@k is known for k = {', '.join(map(str, ks))}"
        )


def _headline(report: EvaluationReport) -> str:
    return ", ".join(f"{row.data_source} avg@{row.samples} {100 * row.avg.value:.1f} %" for row in report.sources)
