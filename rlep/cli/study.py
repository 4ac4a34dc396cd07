"""``rlep study …``: arms compared at one compute budget."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlep.cli.shell import command_errors
from rlep.cli.tables import show_table
from rlep.core.errors import ConfigError, RlepError
from rlep.core.files import write_whole
from rlep.launch.event_loop import ending_signals

if TYPE_CHECKING:
    from rlep.study.conduct import Base
    from rlep.study.study_plan import StudySpec
    from rlep.study.study_report import Found

study_app = typer.Typer(help="Compare ways of training at one compute budget.", no_args_is_help=True)
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="Arms, seeds and the budget.")]


@study_app.command("run")
@command_errors
def run_study(
    file: StudyFile,
    *,
    parallel: Annotated[int, typer.Option(min=1, help="Arms that run at a time.")] = 1,
) -> None:
    """Run every arm under every seed, and write the report; what is complete is not run again."""
    from rlep.check.inputs import grader_digest
    from rlep.study.conduct import conduct
    from rlep.study.study_plan import read_study
    from rlep.study.study_runner import Commands

    study = read_study(file)
    for number in {*ending_signals()} - {signal.SIGINT}:
        signal.signal(number, signal.default_int_handler)  # its commands end with it
    commands = Commands(study.study.phase_hours, study.study.grid)
    found = conduct(
        study,
        _base(study.study),
        commands,
        parallel=parallel,
        say=lambda text: typer.echo(text, err=True),
        name_grader=grader_digest,
    )
    _show(found)
    _check_whole(found)


@study_app.command("report")
@command_errors
def report_study(
    file: Annotated[
        Path, typer.Argument(metavar="STUDY.toml|STUDY.json", help="A study, or a study.json that was kept.")
    ],
    *,
    page: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Write the page of a study.json that was kept.")
    ] = None,
) -> None:
    """Write the report again, from the files that are there; of a study.json print what it says."""
    from rlep.study.conduct import found_in, keep_plan
    from rlep.study.study_plan import read_study
    from rlep.view.study_pages import study_file
    from rlep.view.study_tables import read_report

    if file.suffix == ".json":
        whole = read_report(file)
        _print(whole)
        if page is not None:
            write_whole(page, study_file(whole, {}))
            typer.echo(f"report: {page}")
        return
    if page is not None:
        raise ConfigError(f"--page is for a study.json: the page of {file} is written into study.directory")
    study = read_study(file)
    base = _base(study.study)
    keep_plan(study, base)
    found = found_in(study, base)
    _show(found)
    if not found.runs:
        raise RlepError(f"no arm of {file} is complete in {study.study.directory}: rlep study run {file} runs them")
    _check_whole(found)


def _check_whole(found: Found) -> None:
    if found.failed:
        failed = "; ".join(f"{arm}, seed {seed}: {why.reason}" for (arm, seed), why in found.failed.items())
        raise RlepError(
            f"{len(found.failed)} of {len(found.failed) + len(found.runs)} arms under seeds have no result: {failed}"
        )


def _base(study: StudySpec) -> Base:
    from rlep.cli.quickstart import CONFIGS, task_overrides
    from rlep.quickstart.task import build_task
    from rlep.study.conduct import Base

    if study.base != "quickstart":
        return Base(study.base)
    task = build_task((study.directory / "task").absolute())
    return Base((Path(str(CONFIGS / "base.toml")),), tuple(task_overrides(task)))


def _show(found: Found) -> None:
    """Print what was found; it is written where an arm is complete, so that nothing takes the place of a kept report."""
    from rlep.study.study_report import summary, write_report

    page = write_report(found) if found.runs else None
    _print(json.loads(json.dumps(summary(found))))  # as it is read again
    if page is not None:
        typer.echo(f"report: {page}")


def _print(whole: Mapping[str, Any]) -> None:
    from rlep.view.study_tables import arm_rows, comparison_rows, notes_of, tuning_rows

    for rows in (arm_rows(whole), comparison_rows(whole), tuning_rows(whole)):
        if rows:
            show_table(rows)
    for note in notes_of(whole):
        typer.echo(f"note: {note}")
