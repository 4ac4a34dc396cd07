"""``rlep selftest``: the parts of a run, tried on this machine with a small model in the configured shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import typer

from rlep.check.machine import findings_of
from rlep.check.parts.outcome import Outcome
from rlep.check.parts.suite import outcomes
from rlep.cli.terminal import Terminal
from rlep.config.schema import Config


def environment(config: Config) -> Outcome:
    """What ``rlep doctor`` finds, as one check."""
    found = list(findings_of(config))
    wrong = [finding for finding in found if finding.level == "wrong"]
    if wrong:
        detail = "; ".join(f"{finding.what}: {finding.detail}" for finding in wrong)
        return Outcome("environment", "failed", detail, "rlep doctor says what to do about each")
    return Outcome("environment", "ok", f"{len(found)} findings of rlep doctor, none of them wrong")


def each_check(config: Config) -> Iterator[Outcome]:
    """Every check's outcome as it ends; standard error says which one is going on."""
    yield environment(config)
    yield from outcomes(config, lambda name: typer.echo(f"{name} …", err=True))


def show(found: Iterable[Outcome], *, as_json: bool) -> int:
    """Print outcomes as they come, or all as one object; 1 when one failed, else 0.

    What the processes of a failed check printed goes to standard error, or into the object.
    """
    console = Terminal()
    marks = {"ok": "[green]ok     [/]", "failed": "[red]failed [/]", "skipped": "[yellow]skipped[/]"}
    done = []
    for outcome in found:
        done.append(outcome)
        if as_json:
            continue
        if outcome.messages:
            typer.echo(outcome.messages, err=True)
        console.print(marks[outcome.status], markup=True, end="")
        console.print(f" {outcome.name}: {outcome.detail}", soft_wrap=True)
        if outcome.remedy:
            console.print(f"        → {outcome.remedy}", soft_wrap=True)
    ok = all(outcome.status != "failed" for outcome in done)
    if as_json:
        console.out(json.dumps({"ok": ok, "checks": [asdict(outcome) for outcome in done]}, indent=2))
    return int(not ok)
