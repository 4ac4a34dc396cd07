"""A run that is stopped with Ctrl-C, then killed, is continued by the same command and misses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlep.core.jsonl import read_lines
from tests.conftest import shared_segments
from tests.small import BASE, options, small_task
from tests.waiting import wait_until

STEPS = 8


def start(home: Path, overrides: list[str]) -> subprocess.Popen[str]:
    """The training command in a session of its own, as a terminal would start it."""
    command = [sys.executable, "-m", "rlep", "train", str(BASE), *options(overrides)]
    with (home / "output.txt").open("a") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)


def wait_for(home: Path, run: subprocess.Popen[str], lines: int) -> None:
    """Wait until the run has recorded ``lines`` steps."""
    metrics = home / "run" / "metrics.jsonl"

    def recorded() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    wait_until(lambda: recorded() >= lines or run.poll() is not None, f"{lines} steps", 300)
    assert run.poll() is None, (home / "output.txt").read_text()


@pytest.mark.fault(5, outcome="stated", operator="event `run_resumed`; the same command continues")
@pytest.mark.fault(26, outcome="stopped", operator="event `run_interrupted`; exit status 130")
def test_interrupted_then_killed_then_continued(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=faults", f"run.steps={STEPS}"]
    with start(tmp_path, overrides) as run:
        wait_for(tmp_path, run, 2)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=240) == 130
    output = (tmp_path / "output.txt").read_text()
    assert "stopped: the same command continues the run after step " in output
    assert "Traceback" not in output
    assert not shared_segments()

    with start(tmp_path, overrides) as run:
        wait_for(tmp_path, run, 5)
        os.kill(run.pid, signal.SIGKILL)
        run.wait(timeout=120)

    with start(tmp_path, overrides) as run:
        assert run.wait(timeout=400) == 0, (tmp_path / "output.txt").read_text()
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [line["metrics"]["weights/version"] for line in lines] == list(range(STEPS))
    events = [line["event"] for line in read_lines(tmp_path / "run" / "events.jsonl")]
    assert [e for e in events if e in ("run_started", "run_interrupted", "run_resumed", "run_finished")] == [
        *("run_started", "run_interrupted", "run_resumed", "run_resumed", "run_finished")
    ]
    assert (
        json.loads((tmp_path / "run" / "checkpoints" / f"step-{STEPS:06d}" / "state.json").read_text())["step"] == STEPS
    )
    assert [row["step"] for row in read_lines(tmp_path / "run" / "evaluations.jsonl")] == [0, STEPS]
