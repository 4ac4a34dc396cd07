"""A run that takes commands, and a program that stands for the one that sends them."""

from __future__ import annotations

import sys
from pathlib import Path

from rlep.console.actions import Actions

STUB = """
import pathlib, sys, time
here = pathlib.Path(sys.argv[0]).parent
(here / "asked").write_text("\\n".join(sys.argv[1:]))
print("<script>window.ran = 1</script> \\x1b[2J", "x" * 40_000, "asked for", *sys.argv[1:], flush=True)
while (here / "wait").exists():
    time.sleep(0.02)
sys.exit((here / "refuse").exists())
"""
"""Stands for ``rlep``: says what it was asked for, and ends when ``wait`` is gone."""


def write_working(run: Path) -> Path:
    """A run whose ``generator-1`` is at work."""
    run.mkdir(parents=True)
    event = '{"time": 1.0, "event": "actor_started", "step": null, "actor": "generator-1"}\n'
    (run / "events.jsonl").write_text('{"event": "run_started"}\n' + event)
    (run / "contact.json").write_text("{}")
    (run / "contact.json").chmod(0o600)
    return run


def stub_actions(directory: Path) -> Actions:
    """Actions that start the stub, which lies in the directory."""
    (directory / "stub.py").write_text(STUB)
    return Actions((sys.executable, str(directory / "stub.py")))
