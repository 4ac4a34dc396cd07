"""A run that replays its own successes, on real actors and a real Redis: killed and continued it is the undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.core.jsonl import read_lines
from rlep.driver.wings.live_replay import FILE
from tests.e2e.test_faults import start, wait_for
from tests.small import contents, small_task

STEPS = 5
TIMED = (
    *(
        "time/",
        "actors/",
        "rollout/tokens_per_second",
        "rollout/retried",
        "rollout/dropped",
        "update/tokens_per_second",
    ),
    *("update/flops_per_second", "update/peak_memory", "verifier/seconds", "verifier/latency"),
)


def settings(home: Path) -> list[str]:
    """Few prompts, so that they come again, and two responses of each, so that some leave."""
    home.mkdir()
    return [
        *small_task(home, train=8, heldout=2),
        f'run.directory="{home / "run"}"',
        "run.name=live",
        f"run.steps={STEPS}",
        "replay.count=2",
        "replay.source=live",
        "replay.minimum=1",
        "replay.per_question=2",
        "replay.selection=newest",
        "replay.is_cap=2",
        "checkpoint.keep=1",
    ]


def recorded(home: Path) -> list[dict[str, Any]]:
    """What the run measured, but for times."""
    lines = read_lines(home / "run" / "metrics.jsonl")
    return [{name: value for name, value in one["metrics"].items() if not name.startswith(TIMED)} for one in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    home = tmp_path_factory.mktemp("live") / "whole"
    overrides = settings(home)
    with start(home, overrides) as run:
        assert run.wait(timeout=400) == 0, (home / "output.txt").read_text()
    return home


def test_later_steps_replay_what_earlier_ones_found(whole: Path) -> None:
    made = recorded(whole)
    assert made[0]["replay/trajectories"] == 0
    assert sum(step["replay/trajectories"] for step in made) > 0
    for step in made:
        assert step["replay/trajectories"] == step.get("replay/live", 0) == step["loss/trajectories/replay"]
    last = whole / "run" / "checkpoints" / f"step-{STEPS:06d}" / FILE
    with np.load(last) as file:
        assert len(file["visible_births"]) == made[-1]["live/responses"]
        assert set(file["visible_births"].tolist()) <= set(range(STEPS))


@pytest.mark.fault(5, outcome="equal", operator="event `run_resumed`")
def test_killed_and_continued(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    overrides = settings(home)
    with start(home, overrides) as run:
        wait_for(home, run, 3)
        os.kill(run.pid, signal.SIGKILL)
        run.wait(timeout=120)
    with start(home, overrides) as run:
        assert run.wait(timeout=400) == 0, (home / "output.txt").read_text()
    assert recorded(home) == recorded(whole)
    last = f"run/checkpoints/step-{STEPS:06d}"
    assert contents(home / last) == contents(whole / last)
    with np.load(home / last / FILE) as one, np.load(whole / last / FILE) as other:
        assert {name: np.sort(one[name], axis=None).tolist() for name in one.files} == {
            name: np.sort(other[name], axis=None).tolist() for name in other.files
        }
