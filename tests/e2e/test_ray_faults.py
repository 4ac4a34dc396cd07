"""Ray fails under a run: its head process is killed, or its calls are lost. The run's numbers are those of a run without."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlep.core.jsonl import read_lines
from tests.conftest import shared_segments
from tests.e2e.test_faults import start, wait_for
from tests.e2e.test_live import recorded
from tests.small import contents, small_task
from tests.waiting import DEADLINE_S, wait_until

STEPS = 4
LOST_CALLS = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": 10,
        "resp_failure_prob": 10,
        "in_flight_failure_prob": 5,
    }
}
"""Per cent of the calls of an actor whose request, or whose answer, Ray loses."""


def settings(home: Path) -> list[str]:
    """A run of few steps with a checkpoint of each."""
    home.mkdir()
    own = [f'run.directory="{home / "run"}"', "run.name=ray-faults", f"run.steps={STEPS}"]
    return [*small_task(home, train=8, heldout=2), *own]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    home = tmp_path_factory.mktemp("ray-faults") / "whole"
    overrides = settings(home)
    with start(home, overrides) as run:
        assert run.wait(timeout=400) == 0, (home / "output.txt").read_text()
    return home


def is_the_same(home: Path, whole: Path) -> None:
    """The same numbers in every step, and the same weights and moments after the last."""
    assert recorded(home) == recorded(whole)
    last = f"run/checkpoints/step-{STEPS:06d}"
    assert contents(home / last) == contents(whole / last)


def child_of(run: subprocess.Popen[str], is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
    """One process of the run."""
    return next(one for one in psutil.Process(run.pid).children(recursive=True) if is_it(one))


@pytest.mark.fault(6, outcome="stopped", operator="one sentence after `cluster.head_deadline_s`; exit status 1")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_its_head_the_run_stops_with_a_checkpoint_and_continues(
    whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    home = tmp_path / "headless"
    overrides = [*settings(home), "cluster.head_deadline_s=2"]
    with start(home, overrides) as run:
        wait_for(home, run, 2)
        verifier = child_of(run, lambda one: "ray::VerifierActor" in " ".join(one.cmdline()))
        head = child_of(run, lambda one: "gcs_server" in one.name())
        verifier.send_signal(signal.SIGSTOP)  # the step waits for its verdicts
        head.send_signal(number)

        def said() -> str:
            return (home / "output.txt").read_text()

        wait_until(lambda: "stopped: the same command continues the run after step " in said(), "the run to stop")
        verifier.send_signal(signal.SIGCONT)
        if number == signal.SIGSTOP:
            head.kill()  # Ray itself waits some minutes for a head that hangs
        assert run.wait(timeout=DEADLINE_S) == 1
    errors = [line for line in said().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Ray's head process at 127.0.0.1:" in errors[0]
    assert errors[0].endswith("has not answered for 2 s (cluster.head_deadline_s); the same command continues the run")
    assert "Traceback" not in said()
    assert not shared_segments()
    assert [line["event"] for line in read_lines(home / "run" / "events.jsonl")][-1] == "run_failed"

    with start(home, overrides) as run:
        assert run.wait(timeout=400) == 0, said()
    is_the_same(home, whole)


@pytest.mark.fault(16, outcome="equal", operator="events `actor_lost`, `actor_restarted` where an answer was lost")
def test_a_run_whose_calls_are_lost_by_ray_is_the_undisturbed_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "lossy"
    overrides = settings(home)
    monkeypatch.setenv("RAY_testing_rpc_failure", json.dumps(LOST_CALLS))
    with start(home, overrides) as run:
        assert run.wait(timeout=600) == 0, (home / "output.txt").read_text()
    is_the_same(home, whole)
