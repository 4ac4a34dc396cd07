"""What ``rlep train``, ``collect``, ``sft`` and ``evaluate`` do, from an open run directory to its last line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from rlep.actors.pool_actor import PoolService
from rlep.actors.prometheus_gauges import PrometheusTracker
from rlep.actors.run_progress import Phase, StepReport
from rlep.algorithms.evaluation import EvaluationReport
from rlep.check.fit_checks import memory_advice
from rlep.check.inputs import Inputs, Subject
from rlep.check.pool_checks import check_minimum, covered_questions, pool_exists
from rlep.check.suite import check_inputs, check_start
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, OutOfMemory, PlacementError, PoolError
from rlep.core.plural import counted
from rlep.data.prompts import PromptSet
from rlep.driver.checkpoint import Checkpoint, write_json
from rlep.driver.collect import Collected, Collector, collected_before
from rlep.driver.context import Run
from rlep.driver.evaluate import Evaluated, evaluate_policy, write_samples
from rlep.driver.made_directory import MadeDirectory
from rlep.driver.ports import Progress, Roles, Trainers
from rlep.driver.run_directory import WRITTEN_LATER, Facts, RunDirectory
from rlep.driver.sft import sft_step
from rlep.driver.train import Training, TrainingData
from rlep.driver.wings.rollout_files import RolloutFiles
from rlep.engines.weights.weight_update import LOGPROB_TOLERANCE
from rlep.launch.compose import RunActors, run_actors
from rlep.launch.event_loop import run_async
from rlep.launch.failed_grading import reported
from rlep.launch.watch import Watch
from rlep.launch.wings import experience, rollouts, train_step
from rlep.metrics.catalogue import Tracker
from rlep.metrics.trackers import open_trackers

REFUSALS = (ConfigError, PlacementError, PoolError)
"""Errors that say all that there is to know: before a run's work they leave no logs worth keeping."""


class CommandProgress(Progress, Protocol):
    """What the user of a command is shown; handed in, because this folder prints nothing."""

    def phases(self) -> tuple[Phase, ...]:
        """The bars that are there now."""
        ...

    def step(self, report: StepReport) -> None:
        """A training step is complete."""
        ...

    def stopping(self) -> None:
        """The command was told to stop, and closes what it started."""
        ...


def train(config: Config, progress: CommandProgress) -> Checkpoint:
    """Phase 1 or 2, from the start or from where it stopped; returns the last checkpoint."""
    return _learn(config, "train", progress)


def sft(config: Config, progress: CommandProgress) -> Checkpoint:
    """Supervised fine-tuning on the pool's responses."""
    if not config.replay.count:
        raise ConfigError("sft trains on replays: set replay.count to the responses per prompt and step")
    if config.replay.source != "offline":
        raise ConfigError(f'sft generates nothing: replay.source = "{config.replay.source}" needs `rlep train`')
    if config.replay.failed:
        raise ConfigError("sft imitates every response it is given: set replay.failed = 0")
    return _learn(config, "sft", progress)


def collect(config: Config, progress: CommandProgress) -> Collected:
    """Sample every question; fill the pool."""
    subject = Subject(config, "collect")
    inputs = check_inputs(subject, progress.note)
    with _opened(config, inputs, "collect", progress) as store:
        if done := collected_before(store.path, _train_set(inputs).prompts):
            if not pool_exists(config):
                raise PoolError(
                    f"{store.path} has collected every question, but its pool {config.pool_directory} is gone: "
                    "collect again in another run.directory, or check pool.directory"
                )
            progress.note(f"nothing to do: all {done.coverage.questions} questions are collected")
            return done
        check_start(subject, progress.note)
        return run_async(_collect(config, inputs, store, progress), progress.stopping)


def collected_text(config: Config, collected: Collected) -> str:
    """What the pool holds after a collection, in one line."""
    coverage = collected.coverage
    return (
        f"pool {config.pool.name}: {counted(coverage.accepted, 'response')} to {coverage.covered} of "
        f"{counted(coverage.questions, 'question')} ({collected.correct} of {counted(collected.candidates, 'candidate')} correct)"
    )


def evaluate(
    config: Config, model: Path, data: Sequence[Path], out: Path, progress: CommandProgress
) -> EvaluationReport:
    """Evaluate a model directory; write ``evaluation.json`` and ``samples.parquet``."""
    sections = {
        "model": config.model.model_copy(update={"path": model}),
        "data": config.data.model_copy(update={"evaluation": tuple(data)}),
        "run": config.run.model_copy(update={"name": "evaluate", "directory": out}),
    }
    config = config.model_copy(update=sections)
    subject = Subject(config, "evaluate")
    inputs = check_inputs(subject, progress.note)
    check_start(subject, progress.note)
    made = MadeDirectory(out)
    try:
        evaluated = run_async(_evaluate(config, inputs, progress), progress.stopping)
    except BaseException as error:
        if isinstance(error, REFUSALS):
            made.remove_entries(WRITTEN_LATER)
        made.remove_directories()
        raise
    rows = evaluated.report.to_json()
    write_json(out / "evaluation.json", {"model": str(model), "model_digest": inputs.model_digest, "rows": rows})
    write_samples(out / "samples.parquet", evaluated, inputs.tokenizer.decode)
    return evaluated.report


def _learn(config: Config, phase: Literal["train", "sft"], progress: CommandProgress) -> Checkpoint:
    subject = Subject(config, phase)
    inputs = check_inputs(subject, progress.note)
    with _opened(config, inputs, phase, progress) as store:
        if done := store.checkpoints.complete(config.run.steps):
            store.events.log("run_finished", done.state.step)
            progress.note(f"nothing to do: all {config.run.steps} steps are done, {done.path}")
            return done
        check_start(subject, progress.note)
        return _trained(config, inputs, store, progress, supervised=phase == "sft")


def _trained(
    config: Config, inputs: Inputs, store: RunDirectory, progress: CommandProgress, *, supervised: bool
) -> Checkpoint:
    try:
        return run_async(_train(config, inputs, store, progress, supervised=supervised), progress.stopping)
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}. {memory_advice(config)}") from error


@contextmanager
def _opened(config: Config, inputs: Inputs, phase: str, progress: CommandProgress) -> Iterator[RunDirectory]:
    """The run's directory; a command that is refused before its work begins leaves nothing of it."""
    store = _open(config, inputs, phase, progress)
    refused = False
    try:
        yield store
    except BaseException as error:
        refused = isinstance(error, REFUSALS) and not store.begun
        interrupted = not isinstance(error, Exception)
        with suppress(OSError):  # a full disk, which may be what it failed of
            store.events.log(
                "run_interrupted" if interrupted else "run_failed", error=f"{type(error).__name__}: {error}"
            )
        raise
    finally:
        if refused:
            store.discard()
        else:
            store.close()


def _open(config: Config, inputs: Inputs, phase: str, progress: CommandProgress) -> RunDirectory:
    prompts = inputs.train
    facts = Facts(
        phase=phase,
        model_digest=inputs.model_digest,
        tokenizer_digest=inputs.tokenizer.digest,
        data_digest=prompts.digest if prompts else "",
        data=asdict(prompts.report) if prompts else {},
        template_digest=inputs.template_digest,
    )
    store = RunDirectory(config.run.directory, config, facts, partial(_trackers, config, progress))
    store.events.log("data_loaded", None, **facts.data)
    return store


def _trackers(config: Config, progress: CommandProgress) -> list[Tracker]:
    run, tracking = config.run, config.tracking
    files = [sink for sink in tracking.sinks if sink != "prometheus"]
    opened = open_trackers(files, directory=run.directory, project=tracking.project, name=run.name)
    return [*opened, *([PrometheusTracker(run.name, progress.phases)] if "prometheus" in tracking.sinks else [])]


async def _train(
    config: Config, inputs: Inputs, store: RunDirectory, progress: CommandProgress, *, supervised: bool
) -> Checkpoint:
    prompts = _train_set(inputs)
    progress.note(f"{config.run.name}: starting {_actor_counts(config, learns=True)}")
    async with (
        run_actors(config, partial(_report, store)) as actors,
        RolloutFiles(config, inputs.tokenizer.decode, store.events) as files,
    ):
        generators, verifiers, learner = actors.generators(), actors.verifiers(), actors.learners()
        offline = config.replay.count and config.replay.source != "live"
        pool = actors.pool(inputs, read_only=True) if offline else None
        own = actors.live(inputs) if config.replay.source != "offline" else None
        failures = actors.failures(inputs, read_only=True) if config.replay.failed else None
        tolerance = {"weights/logprob_tolerance": LOGPROB_TOLERANCE[config.generator.compute_dtype]}
        watch = Watch(config.run.steps, progress.phases, shown=progress.step, constant=tolerance)
        control = actors.control(watch.progress)
        await _started(actors, progress)
        digest = "" if pool is None else await _pool_digest(config, pool, prompts, store, progress)
        if failures is not None:
            digest += f"+{await failures.digest()}"
        store.begin()
        writers, trained, weights = actors.ports(
            generators, learner, actors.weights(learner, generators, prompts.prompts)
        )
        run = _run(config, inputs, Roles(writers, reported(config, verifiers, progress, store)), progress)
        data = TrainingData(prompts, inputs.held_out, digest, inputs.tokenizer.decode)
        live = experience(config, own, pool)
        trainers = Trainers(trained, weights, rollouts(run, prompts), live or pool, failures, live)
        step = watch.watched(
            sft_step if supervised else train_step(config, prompts, live, files),
            actors.cluster.timeline,
            control.roles,
        )
        return await Training(run, trainers, data, store, step).run()


async def _collect(config: Config, inputs: Inputs, store: RunDirectory, progress: CommandProgress) -> Collected:
    prompts = _train_set(inputs)
    progress.note(f"{config.run.name}: starting {_actor_counts(config, learns=False)}")
    async with run_actors(config, partial(_report, store)) as actors:
        generators, verifiers = actors.generators(base_version=0), actors.verifiers()
        pool = actors.pool(inputs, read_only=False)
        failures = actors.failures(inputs, read_only=False) if config.collection.failed else None
        actors.control(Watch(None, progress.phases).progress)
        await _started(actors, progress)
        store.begin()
        run = _run(config, inputs, Roles(generators, reported(config, verifiers, progress, store)), progress)
        return await Collector(run, pool, store, prompts.prompts, failures).run()


async def _evaluate(config: Config, inputs: Inputs, progress: CommandProgress) -> Evaluated:
    progress.note(f"{config.run.name}: starting {_actor_counts(config, learns=False)}")
    async with run_actors(config) as actors:
        generators, verifiers = actors.generators(base_version=0), actors.verifiers()
        await _started(actors, progress)
        run = _run(config, inputs, Roles(generators, reported(config, verifiers, progress)), progress)
        return await evaluate_policy(run, inputs.held_out, config.evaluation.samples)


async def _started(actors: RunActors, progress: CommandProgress) -> None:
    with progress.phase("start", actors.roles, "roles") as advance:
        await actors.started(advance)


async def _pool_digest(
    config: Config, pool: PoolService, prompts: PromptSet, store: RunDirectory, progress: CommandProgress
) -> str:
    covered = covered_questions(config, await pool.prompt_ids(), prompts)
    check_minimum(config, await pool.stats())
    where = config.pool.url or config.pool_directory
    digest = await pool.digest()
    store.events.log("pool_opened", where=str(where), digest=digest, covered=covered, questions=len(prompts))
    progress.note(f"pool {config.pool.name}: responses to {covered} of {counted(len(prompts), 'training question')}")
    return digest


def _report(store: RunDirectory, event: str, actor: str, error: str) -> None:
    store.events.log(event, None, actor=actor, error=error)


def _run(config: Config, inputs: Inputs, roles: Roles, progress: CommandProgress) -> Run:
    return Run(
        config,
        roles,
        progress,
        tokenizer_digest=inputs.tokenizer.digest,
        policy_digest=f"{config.run.name}:{inputs.model_digest}",
        generator_dtype=config.generator.compute_dtype,
        vocabulary=inputs.vocabulary,
        template_digest=inputs.template_digest,
    )


def _train_set(inputs: Inputs) -> PromptSet:
    if inputs.train is None:
        raise ConfigError("data.train is not set")
    return inputs.train


def _actor_counts(config: Config, *, learns: bool) -> str:
    ranks = [counted(config.learner.ranks, "learner rank")] if learns else []
    return ", ".join([counted(config.generator.count, "generator"), *ranks, counted(config.verifier.count, "verifier")])
