"""All that the commands have in common: opening the run directory, starting actors, their first lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Protocol

from rlep.actors.cluster import Report
from rlep.actors.prometheus_gauges import PrometheusTracker
from rlep.actors.run_progress import Phase, StepReport
from rlep.check.inputs import Inputs
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, PlacementError, PoolError, first_line
from rlep.core.plural import counted
from rlep.core.types import Prompt, Verdict
from rlep.data.prompts import PromptSet
from rlep.driver.context import Roles, Run
from rlep.driver.crashes import ReportedCrashes, is_function, judge_of
from rlep.driver.ports import Generators, Progress, Verifiers
from rlep.driver.run_directory import Facts, RunDirectory, refuse_other_run
from rlep.driver.wings.episodes import EpisodeVerifiers
from rlep.hub.resolve import resolve
from rlep.launch.roles import RunActors
from rlep.metrics.catalogue import Tracker
from rlep.metrics.trackers import open_trackers

REFUSALS = (ConfigError, PlacementError, PoolError)
"""Errors that say all that there is to know: before a run's work they leave no logs worth keeping."""


class CommandProgress(Progress, Protocol):
    """Progress shown to the user of a command; handed in, because this folder prints nothing."""

    def phases(self) -> tuple[Phase, ...]:
        """Return the bars that are there now."""
        ...

    def step(self, report: StepReport) -> None:
        """Show a complete training step."""
        ...

    def stopping(self) -> None:
        """Say that the command was told to stop, and closes what it started."""
        ...


def resolve_names(config: Config, command: str, progress: Progress) -> Config:
    """Pin and fetch what a run's config names; of a run that would be continued on other commits, nothing is fetched.

    Raises ``ConfigError`` naming both, ``ModelError`` or ``DataError`` saying why a name stands for nothing.
    """
    unlike = partial(refuse_other_run, config.run.directory, command)
    return resolve(config, progress.note, check=unlike, phase=progress.phase, learns=command == "train")


def train_set(inputs: Inputs) -> PromptSet:
    """Return the training prompts. Raises ``ConfigError`` where there are none."""
    if inputs.train is None:
        raise ConfigError("data.train is not set")
    return inputs.train


@contextmanager
def open_run(config: Config, inputs: Inputs, command: str, progress: CommandProgress) -> Iterator[RunDirectory]:
    """Open the run's directory; a command that is refused before its work begins leaves nothing of it."""
    prompts = inputs.train
    facts = Facts(
        command=command,
        model_digest="+".join(filter(None, (inputs.model_digest, inputs.teacher_digest))),
        tokenizer_digest=inputs.tokenizer.digest,
        data_digest=prompts.digest if prompts else "",
        data=asdict(prompts.report) if prompts else {},
        template_digest=inputs.tokenizer.template_digest,
        grader_digest=inputs.grader_digest,
    )
    store = RunDirectory(config.run.directory, config, facts, partial(_trackers, config, progress))
    store.events.log("data_loaded", None, **facts.data)
    failed = refused = False
    try:
        yield store
    except BaseException as error:
        failed, refused = True, isinstance(error, REFUSALS) and not store.begun
        event = "run_failed" if isinstance(error, Exception) else "run_interrupted"
        with suppress(OSError):  # a full disk, which may be what it failed of
            store.events.log(event, error=f"{type(error).__name__}: {error}")
        raise
    finally:
        if refused:
            store.discard()
        else:
            store.close(failed=failed)


def _trackers(config: Config, progress: CommandProgress) -> list[Tracker]:
    run, tracking = config.run, config.tracking
    files = [sink for sink in tracking.sinks if sink != "prometheus"]
    opened = open_trackers(files, directory=run.directory, project=tracking.project, name=run.name)
    return [*opened, *([PrometheusTracker(run.name, progress.phases)] if "prometheus" in tracking.sinks else [])]


def actor_report(progress: Progress, store: RunDirectory | None = None) -> Report:
    """Return the function that logs what happens to an actor as an event of the run, and notes its loss and its return."""
    lost: dict[str, float] = {}

    def report(event: str, actor: str, error: str) -> None:
        if event == "actor_lost":
            lost.setdefault(actor, time.monotonic())
            progress.note(f"{actor} lost: {first_line(error)}")
        elif event == "actor_restarted":
            progress.note(f"{actor} is back, {time.monotonic() - lost.pop(actor):.0f} s after its loss")
        if store is not None:
            store.events.log(event, None, actor=actor, error=error)

    return report


async def wait_for_roles(actors: RunActors, progress: CommandProgress) -> None:
    """Wait until every role is up, with a bar."""
    with progress.phase("start", actors.roles, "roles") as advance:
        await actors.started(advance)


def run_of(config: Config, inputs: Inputs, generators: Generators, verifiers: Verifiers, progress: Progress) -> Run:
    """Return the run that the driver is given."""
    model = config.model
    weights = f"{model.path}@{model.revision}" if model.revision else inputs.model_digest
    return Run(
        config,
        Roles(generators, verifiers),
        progress,
        tokenizer_digest=inputs.tokenizer.digest,
        policy_digest=f"{config.run.name}:{weights}",
        generator_dtype=config.generator.compute_dtype,
        vocabulary=inputs.vocabulary,
        template_digest=inputs.tokenizer.template_digest,
        environment_digest=inputs.environment_digest,
        grader_digest=inputs.grader_digest,
    )


def starting_text(config: Config, *, learns: bool) -> str:
    """Return the line that counts the actors a command starts."""
    ranks = [counted(config.learner.ranks, "learner rank")] if learns else []
    counts = [counted(config.generator.count, "generator"), *ranks, counted(config.verifier.count, "verifier")]
    if config.environment.factory:
        counts.append(counted(config.environment.count, "environment"))
    return f"{config.run.name}: starting {', '.join(counts)}"


def report_crashes(
    config: Config, verifiers: Verifiers, progress: Progress, store: RunDirectory | None = None
) -> Verifiers:
    """Wrap ``verifiers``: what an environment has judged stays, and the first crash of each kind of either is noted.

    It is logged where there is a directory.
    """

    def report(prompt: Prompt, verdict: Verdict) -> None:
        who = judge_of(config) if verdict.verifier.startswith("environment") else config.verifier.profile
        what = f"{who} crashed on a response to the question {prompt.id}"
        error, _, traceback = verdict.reason.partition("\n")
        if store is None:
            progress.note(f"{what}: {verdict.reason}")
            return
        log = store.keep_log("verifier.err", f"{what}: {error}\n{traceback}".rstrip())
        store.events.log("grading_failed", prompt_id=prompt.id, error=error, log=str(log))
        progress.note(f"{what}: {error}. Log: {log}")

    graders = EpisodeVerifiers(verifiers) if config.environment.factory else verifiers
    return ReportedCrashes(graders, report) if is_function(judge_of(config)) else graders
