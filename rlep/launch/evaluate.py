"""``rlep evaluate``: held-out accuracy of a model directory, or of the best or last checkpoint of a run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlep.algorithms.evaluation import EvaluationReport
from rlep.check.inputs import Inputs, Subject
from rlep.check.suite import check_inputs, check_start
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.core.files import write_json
from rlep.core.printable import printable
from rlep.driver.checkpoint import choose_checkpoint
from rlep.driver.evaluate import Evaluated, evaluate_policy, write_samples
from rlep.driver.made_directory import MadeDirectory
from rlep.driver.run_directory import WRITTEN_LATER, changed_parts
from rlep.driver.stored_run import evaluated_config, stored_config
from rlep.hub.resolve import model_text, resolve
from rlep.launch.command import (
    REFUSALS,
    CommandProgress,
    actor_report,
    report_crashes,
    run_of,
    starting_text,
    wait_for_roles,
)
from rlep.launch.event_loop import run_async
from rlep.launch.roles import run_actors
from rlep.launch.wings import episodes


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model, and the config that it is evaluated with."""

    path: Path
    config: Config
    data: tuple[Path, ...]
    """Held-out files: those given, else ``data.evaluation``."""
    notes: tuple[str, ...]
    """Lines for the user: the checkpoint that was taken, and held-out files that are the training file."""
    grader_digest: str = ""
    """Of what graded the run; empty: not known."""


def choose_model(
    directory: Path, data: Sequence[Path], files: Sequence[Path], overrides: Sequence[str]
) -> EvaluatedModel:
    """Return the model in ``directory``; of a run, its best checkpoint if it kept one, else its last.

    A run is evaluated with its own config unless config files are given; overrides apply to either. A run that this user did
    not make gives only what describes model, sampling and grading: see ``rlep.driver.stored_run``.

    Raises:
        ConfigError: a config that cannot be used, or no held-out file.
        CheckpointError: the run has no intact checkpoint.
    """
    is_run = (directory / "config.json").is_file() and (directory / "checkpoints").is_dir()
    own, left_out = None, tuple[str, ...]()
    if files or not is_run:
        config = load_config(files, overrides)
        own = stored_config(directory) if is_run else None
    else:
        stored = evaluated_config(directory, overrides)
        config, own, left_out = stored.config, stored.whole, stored.left_out
    held_out = tuple(data) or config.data.evaluation
    if not held_out:
        raise ConfigError("\n".join([*left_out, "nothing to evaluate on: name held-out files, or set data.evaluation"]))
    train = (own or config).data.train_paths
    notes = [
        f"{file} is the training file: this accuracy says nothing about unseen questions"
        for file in held_out
        if any(file == other or (file.exists() and other.exists() and file.samefile(other)) for other in train)
    ]
    if own is None:
        return EvaluatedModel(directory, config, held_out, tuple(notes))
    notes = [*left_out, *notes]
    chosen, why = choose_checkpoint(directory / "checkpoints", own.checkpoint.best)
    lines = (f"{why} of {directory}: step {chosen.state.step}", *notes)
    return EvaluatedModel(chosen.model, config, held_out, lines, chosen.state.grader_digest)


def evaluate(
    config: Config, model: Path, data: Sequence[Path], out: Path, progress: CommandProgress, *, graded_by: str = ""
) -> EvaluationReport:
    """Evaluate a model, a directory or the hub's; write ``evaluation.json`` and ``samples.parquet``.

    ``graded_by`` names what graded the run; another grader is said, for its figures are not comparable with the run's.
    """
    name = f"evaluate-{secrets.token_hex(4)}"  # a run's name is taken on its cluster, where several may be evaluated at once
    sections = {
        "model": config.model.model_copy(
            update={"path": model, "revision": None if model.is_dir() else config.model.revision}
        ),
        "data": config.data.model_copy(update={"train": (), "evaluation": tuple(data)}),  # nothing else is asked for
        "run": config.run.model_copy(update={"name": name, "directory": out}),
    }
    config = resolve(config.model_copy(update=sections), progress.note, phase=progress.phase)
    subject = Subject(config, "evaluate", phase=progress.phase)
    inputs = check_inputs(subject, progress.note)
    check_start(subject, progress.note)
    if graded_by and graded_by != inputs.grader_digest:
        held, found = changed_parts(graded_by, inputs.grader_digest)
        progress.note(f"graded by {found}, the run was by {printable(held)[:200]}: their accuracies are not comparable")
    made = MadeDirectory(out)
    try:
        evaluated = run_async(_evaluate(config, inputs, progress), progress.stopping)
    except BaseException as error:
        if isinstance(error, REFUSALS):
            made.remove_entries(WRITTEN_LATER)
        made.remove_directories()
        raise
    rows = evaluated.report.to_json()
    write_json(
        out / "evaluation.json",
        {
            "model": model_text(config.model),
            "model_digest": inputs.model_digest,
            "grader_digest": inputs.grader_digest,
            "rows": rows,
        },
    )
    write_samples(out / "samples.parquet", evaluated, inputs.tokenizer.decode)
    return evaluated.report


async def _evaluate(config: Config, inputs: Inputs, progress: CommandProgress) -> Evaluated:
    progress.note(starting_text(config, learns=False))
    async with run_actors(config, actor_report(progress)) as actors:
        generators, verifiers = actors.generators(base_version=0), actors.verifiers()
        players = episodes(config, inputs, generators, actors.environments())
        await wait_for_roles(actors, progress)
        run = run_of(config, inputs, players, report_crashes(config, verifiers, progress), progress)
        return await evaluate_policy(run, inputs.held_out, config.evaluation.samples)
