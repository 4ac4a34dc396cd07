"""``rlep check``: why a run will not work, found before it starts."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rlep.check.finding import Finding
from rlep.cli.configs import MaybeFiles, Overrides
from rlep.cli.shell import command_errors
from rlep.cli.terminal import Terminal
from rlep.core.errors import ModelError
from rlep.core.versions import check_versions

MARKS = {"ok": "[green]ok     [/]", "skipped": "[yellow]skipped[/]", "wrong": "[red]wrong  [/]"}

NEEDED = {"builds", "driver", "compiler", "GPUs"}
"""Findings without which no part can work: each would fail with an error that says less."""


@command_errors
def check(
    files: MaybeFiles = None,
    overrides: Overrides = None,
    *,
    try_parts: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Also try the parts here, with two layers of the model's shape: some minutes. With an environment also "
            "play an episode with the model itself.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check configuration, data, machine and fit, in this order. Prints a remedy for each problem; starts no actor."""
    with closing(_findings(files, overrides, try_parts=try_parts)) as found:  # which removes what the parts wrote
        status = show_findings(found, as_json=as_json)
    raise typer.Exit(status)


def _findings(files: list[Path] | None, overrides: list[str] | None, *, try_parts: bool) -> Generator[Finding]:
    from rlep.check.suite import findings, resolved
    from rlep.cli.progress import TerminalProgress
    from rlep.config.settings import load_config

    config = load_config(files or (), overrides or ())
    with TerminalProgress() as progress:
        config = resolved(config, progress.note, progress.phase)
    wrong: set[str] = set()
    for finding in findings(config):
        wrong |= {finding.what} if finding.level == "wrong" else set()
        yield finding
    if try_parts and (first := wrong & NEEDED):
        yield Finding("parts", "skipped", f"none was tried, because of what is wrong with: {', '.join(sorted(first))}")
    elif try_parts:
        check_versions()
        from rlep.check.parts.trials import try_parts as trials
        from rlep.launch.event_loop import interrupt_once
        from rlep.launch.try_episode import try_episode

        interrupt_once()
        try:
            for trial in (trials, try_episode):
                yield from trial(config, lambda name: typer.echo(f"{name} …", err=True))
        except ModelError as error:  # no shape to make a small model of
            yield Finding("parts", "wrong", str(error))


def show_findings(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Print findings as they come, or all as one object; return 1 when something is wrong, else 0.

    What the processes of a failed part printed goes to standard error, or into the object.
    """
    console = Terminal()
    shown = []
    for finding in findings:
        shown.append(finding)
        if as_json:
            continue
        if finding.messages:
            typer.echo(finding.messages, err=True)
        console.print(MARKS[finding.level], markup=True, end="")
        console.print(f" {finding.what}: {finding.detail}", soft_wrap=True)
        if finding.remedy:
            console.print(f"        → {finding.remedy}", soft_wrap=True)
    ok = all(finding.level != "wrong" for finding in shown)
    if as_json:
        console.out(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in shown]}, indent=2))
    return int(not ok)
