"""``rlep doctor``: what this machine has, what is wrong with it for a given config, and how to fix it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from rlep.check.machine import Finding, findings_of
from rlep.cli.terminal import Terminal
from rlep.config.schema import Config


def examine(config: Config) -> int:
    """Print all findings; 1 when something is wrong, else 0."""
    return show_findings(findings_of(config))


def show_findings(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Print findings; 1 when something is wrong, else 0."""
    console = Terminal()
    marks = {"ok": "[green]ok   [/]", "note": "[yellow]note [/]", "wrong": "[red]wrong[/]"}
    findings = list(findings)
    if as_json:
        console.out(json.dumps([asdict(finding) for finding in findings], indent=2))
    for finding in findings if not as_json else ():
        console.print(marks[finding.level], markup=True, end="")
        console.print(f" {finding.what}: {finding.detail}", soft_wrap=True)
        if finding.remedy:
            console.print(f"      → {finding.remedy}")
    return int(any(finding.level == "wrong" for finding in findings))
