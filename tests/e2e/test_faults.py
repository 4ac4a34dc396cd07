"""A run that is stopped, killed or loses Ray is continued by the same command, and what it recorded is the undisturbed run's.

The runs replay their own successes, so that what a live pool holds is compared too, and sample by a stop and a temperature.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rlep.core.jsonl import read_lines
from rlep.driver.live_replay import FILE
from tests.conftest import shared_segments
from tests.small import BASE, contents, options, small_task
from tests.waiting import DEADLINE_S, wait_until

STEPS = 8
LAST = f"run/checkpoints/step-{STEPS:06d}"
TIMED = (
    *(
        "time/",
        "actors/",
        "generator/",
        "rollout/tokens_per_second",
        "rollout/retried",
        "rollout/dropped",
        "update/tokens_per_second",
    ),
    *("update/flops_per_second", "update/peak_memory", "verifier/seconds", "verifier/latency"),
)
LOST_CALLS = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": 4,
        "resp_failure_prob": 4,
        "in_flight_failure_prob": 2,
    }
}
"""Per cent of the calls of an actor whose request, or whose answer, Ray loses."""


def settings(home: Path) -> list[str]:
    """Few prompts, so that they come again, and two responses of each, so that some leave."""
    home.mkdir()
    return [
        *small_task(home, train=8, heldout=2),
        f'run.directory="{home / "run"}"',
        "run.name=faults",
        f"run.steps={STEPS}",
        "replay.count=2",
        "replay.source=live",
        "replay.minimum=1",
        "replay.per_question=2",
        "replay.selection=newest",
        'replay.correction={weight="token",cap=2}',
        'rollout.stop=["}"]',
        "rollout.temperature=0.8",
        "loss.temperature=rollout",
        "checkpoint.keep=1",
    ]


def start(home: Path, overrides: list[str]) -> subprocess.Popen[str]:
    """The training command in a session of its own, as a terminal would start it."""
    command = [sys.executable, "-m", "rlep", "train", str(BASE), *options(overrides)]
    with (home / "output.txt").open("a") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)


def said(home: Path) -> str:
    """All that the runs in a directory printed."""
    return (home / "output.txt").read_text()


def wait_for(home: Path, run: subprocess.Popen[str], lines: int) -> None:
    """Wait until the run has recorded ``lines`` steps."""
    metrics = home / "run" / "metrics.jsonl"

    def steps() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    wait_until(lambda: steps() >= lines or run.poll() is not None, f"{lines} steps", 300)
    assert run.poll() is None, said(home)


def to_the_end(home: Path, overrides: list[str]) -> None:
    """The training command, which succeeds."""
    with start(home, overrides) as run:
        assert run.wait(timeout=600) == 0, said(home)


def recorded(home: Path) -> list[dict[str, Any]]:
    """What the run measured, but for times."""
    lines = read_lines(home / "run" / "metrics.jsonl")
    return [{name: value for name, value in one["metrics"].items() if not name.startswith(TIMED)} for one in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    home = tmp_path_factory.mktemp("faults") / "whole"
    to_the_end(home, settings(home))
    return home


def is_the_same(home: Path, whole: Path) -> None:
    """The same numbers in every step; the same weights, moments and live pool after the last."""
    assert recorded(home) == recorded(whole)
    assert contents(home / LAST) == contents(whole / LAST)
    with np.load(home / LAST / FILE) as one, np.load(whole / LAST / FILE) as other:
        assert {name: np.sort(one[name], axis=None).tolist() for name in one.files} == {
            name: np.sort(other[name], axis=None).tolist() for name in other.files
        }


def test_later_steps_replay_what_earlier_ones_found(whole: Path) -> None:
    made = recorded(whole)
    assert made[0]["replay/trajectories"] == 0
    assert sum(step["replay/trajectories"] for step in made) > 0
    for step in made:
        assert step["replay/trajectories"] == step.get("replay/live", 0) == step["loss/trajectories/replay"]
    with np.load(whole / LAST / FILE) as file:
        assert len(file["visible_births"]) == made[-1]["live/responses"]
        assert set(file["visible_births"].tolist()) <= set(range(STEPS))


def test_interrupted_then_killed_then_continued(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    overrides = settings(home)
    with start(home, overrides) as run:
        wait_for(home, run, 2)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=240) == 130
    assert "stopped: the same command continues the run after step " in said(home)
    assert "Traceback" not in said(home)
    assert not shared_segments()

    with start(home, overrides) as run:
        wait_for(home, run, 5)
        os.kill(run.pid, signal.SIGKILL)
        run.wait(timeout=120)

    to_the_end(home, overrides)
    lines = read_lines(home / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [line["metrics"]["weights/version"] for line in lines] == list(range(STEPS))
    events = [line["event"] for line in read_lines(home / "run" / "events.jsonl")]
    assert [e for e in events if e in ("run_started", "run_interrupted", "run_resumed", "run_finished")] == [
        *("run_started", "run_interrupted", "run_resumed", "run_resumed", "run_finished")
    ]
    assert json.loads((home / LAST / "state.json").read_text())["step"] == STEPS
    assert [row["step"] for row in read_lines(home / "run" / "evaluations.jsonl")] == [0, STEPS]
    is_the_same(home, whole)


def child_of(run: subprocess.Popen[str], is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
    """One process of the run."""
    return next(one for one in psutil.Process(run.pid).children(recursive=True) if is_it(one))


def lose_the_head(home: Path, run: subprocess.Popen[str], number: signal.Signals) -> None:
    """Kill or stop Ray's head under a run, which stops with one sentence and a checkpoint."""
    before = len(said(home))
    verifier = child_of(run, lambda one: "ray::VerifierActor" in " ".join(one.cmdline()))
    head = child_of(run, lambda one: "gcs_server" in one.name())
    verifier.send_signal(signal.SIGSTOP)  # the step waits for its verdicts
    head.send_signal(number)
    stopped = "stopped: the same command continues the run after step "
    wait_until(lambda: stopped in said(home)[before:] or run.poll() is not None, "the run to stop")
    assert stopped in said(home)[before:], said(home)[before:]
    verifier.send_signal(signal.SIGCONT)
    if number == signal.SIGSTOP:
        head.kill()  # Ray itself waits some minutes for a head that hangs
    assert run.wait(timeout=DEADLINE_S) == 1
    errors = [line for line in said(home)[before:].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Ray's head process at 127.0.0.1:" in errors[0]
    assert errors[0].endswith("has not answered for 2 s (cluster.head_deadline_s); the same command continues the run")
    assert "Traceback" not in said(home)
    assert not shared_segments()
    events = [line["event"] for line in read_lines(home / "run" / "events.jsonl")]
    assert events[-1] == "run_failed"
    assert events.count("head_lost") == events.count("run_failed")


def test_without_its_head_the_run_stops_with_a_checkpoint_and_continues(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "headless"
    overrides = [*settings(home), "cluster.head_deadline_s=2"]
    for steps, number in ((2, signal.SIGKILL), (5, signal.SIGSTOP)):
        with start(home, overrides) as run:
            wait_for(home, run, steps)
            lose_the_head(home, run, number)
    to_the_end(home, overrides)
    is_the_same(home, whole)


def test_a_run_whose_calls_are_lost_by_ray_is_the_undisturbed_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "lossy"
    overrides = settings(home)
    monkeypatch.setenv("RAY_testing_rpc_failure", json.dumps(LOST_CALLS))
    to_the_end(home, overrides)
    is_the_same(home, whole)
