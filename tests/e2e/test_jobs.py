"""Ray jobs on a running cluster with a token: training, stopped and continued, and one that asks another's pool."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlep.core.jsonl import read_lines
from tests.small import BASE, options, rlep, small_task
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Head:
    """A cluster of one node."""

    dashboard: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """``ray start --head`` with a generated token, on free ports."""
    home = tmp_path_factory.mktemp("head")
    ray = Path(tempfile.mkdtemp(prefix="rlep-test-head-"))  # short: paths of sockets have at most 107 bytes
    token = home / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # jobs run the `python` they find
    }
    names = (
        *("port", "dashboard-port", "ray-client-server-port", "node-manager-port", "object-manager-port"),
        *("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port", "metrics-export-port"),
    )
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--object-store-memory=200000000"),
        *(f"--{name}={port}" for name, port in ports.items()),
        f"--temp-dir={ray}",
    ]
    with (
        (home / "ray.log").open("w") as log,
        subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            yield Head(
                f"http://127.0.0.1:{ports['dashboard-port']}",
                environment | {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}"},
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            shutil.rmtree(ray, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def submission(head: Head) -> list[str]:
    return ["submit", "--address", head.dashboard, "--working-dir", str(ROOT), "--"]


def submit(head: Head, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``rlep submit``, from this repository as the working directory; Ray's own variable names another cluster."""
    return rlep(*submission(head), *arguments, check=check, **head.environment | {"RAY_ADDRESS": "127.0.0.1:1"})


def submit_apart(head: Head, *arguments: str) -> subprocess.Popen[str]:
    """``rlep submit`` whose lines are read while the job goes on."""
    command = [sys.executable, "-m", "rlep", *submission(head), *arguments]
    return subprocess.Popen(command, env=os.environ | head.environment, stdout=subprocess.PIPE, text=True)


def stop(head: Head, job: subprocess.Popen[str]) -> tuple[str, str]:
    """``ray job stop``, as a user calls it; the job's name and what it still said."""
    assert job.stdout is not None
    name = job.stdout.readline().split()[1]  # submitted NAME to ADDRESS
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", "--address", head.dashboard, name]
    subprocess.run(command, env=os.environ | head.environment, check=True, capture_output=True)
    output, _ = job.communicate(timeout=300)
    return name, output


def test_a_job_that_is_stopped_writes_a_checkpoint_and_the_same_job_goes_on_from_it(head: Head, tmp_path: Path) -> None:
    run = tmp_path / "train"
    settings = [*small_task(tmp_path), f'run.directory="{run}"', "run.name=job"]
    with submit_apart(head, "train", str(BASE), *options([*settings, "run.steps=100000"])) as job:
        try:
            metrics = run / "metrics.jsonl"
            wait_until(
                lambda: job.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0), "a step", 300
            )
            name, output = stop(head, job)
        finally:
            job.kill()
    assert f"job {name}: STOPPED" in output
    assert "stopped: the same command continues the run after step " in output
    steps = len(read_lines(metrics))
    assert (run / "checkpoints" / f"step-{steps:06d}" / "model" / "model.safetensors").exists()

    done = submit(head, "train", str(BASE), *options([*settings, f"run.steps={steps + 1}"]))
    assert "SUCCEEDED" in done.stdout, done.stdout
    assert [line["step"] for line in read_lines(metrics)] == list(range(steps + 1))
    events = [line["event"] for line in read_lines(run / "events.jsonl") if line["event"].startswith("run_")]
    assert events == ["run_started", "run_interrupted", "run_resumed", "run_finished"]


def test_a_job_asks_a_running_runs_pool(head: Head, tmp_path: Path) -> None:
    collected = [
        *small_task(tmp_path),
        f'run.directory="{tmp_path / "collect"}"',
        "run.name=shared",
        "collection.samples=8192",
        "generator.max_sequences=1",  # one after the other: it goes on for hours, until it is stopped
    ]
    with submit_apart(head, "collect", str(BASE), *options(collected)) as job:
        try:
            roles = looked_at(head, job)
            asked = ask(head, job)
            refused_while_it_runs(head, tmp_path)
            name, output = stop(head, job)
        finally:
            job.kill()  # where a check failed, it would go on for hours
    assert f"job {name}: STOPPED" in output
    assert [role["role"] for role in roles] == ["generator", "verifier", "pool"]
    unknown = rlep("status", "nobody", check=False, **head.environment)
    assert unknown.returncode == 2
    assert "no run nobody is in progress on this cluster; there: none" in unknown.stderr
    assert asked["questions_with"]["1"] <= 16
    assert asked["trajectories"] >= 0

    refused = submit(head, "pool", "stats", "--attach", "nobody", check=False)
    assert refused.returncode == 1
    assert "no pool actor in rlep-nobody" in refused.stdout


def looked_at(head: Head, job: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The roles of the first job's run, asked for by its name, as soon as it takes commands."""
    roles: list[dict[str, Any]] = []

    def seen() -> bool:
        assert job.poll() is None, "the collection ended before it was looked at"
        done = rlep("status", "shared", "--json", check=False, **head.environment)
        if done.returncode == 0:
            roles.extend(json.loads(done.stdout)["roles"])
        else:
            assert "no run shared is in progress" in done.stderr
        return done.returncode == 0

    wait_until(seen, "the first job's status")
    return roles


def refused_while_it_runs(head: Head, tmp_path: Path) -> None:
    """A second run of the same name, and three commands without the cluster's token: a sentence each."""
    address = head.environment["RAY_ADDRESS"]
    settings = [*small_task(tmp_path), f'run.directory="{tmp_path / "second"}"', f'cluster.address="{address}"']
    second = rlep("train", BASE, *options([*settings, "run.name=shared"]), check=False, **head.environment)
    said = "a run named shared is in progress on this cluster: choose another run.name"
    assert (second.returncode, second.stderr.splitlines()[-1]) == (1, f"error: {said}")

    (tmp_path / "wrong").write_text(secrets.token_hex(32))
    (tmp_path / "wrong").chmod(0o600)
    stranger = Head(head.dashboard, head.environment | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")})
    sent = submit(stranger, "pool", "stats", "--attach", "shared", check=False)
    run = rlep("train", BASE, *options([*settings, "run.name=other"]), check=False, **stranger.environment)
    assert [line.split(":")[0] for line in run.stderr.splitlines()] == ["other", "error"]  # and nothing of Ray's own
    for done in (sent, run):
        assert done.returncode == 1
        assert "refuses this token: set RAY_AUTH_MODE=token" in done.stderr.splitlines()[-1], done.stderr
        assert "Traceback" not in done.stderr


def ask(head: Head, job: subprocess.Popen[str]) -> dict[str, Any]:
    """The pool's statistics, from a second job, as soon as the first one's pool is there."""
    found: dict[str, Any] = {}

    def asked() -> bool:
        assert job.poll() is None, "the collection ended before its pool was asked"
        done = submit(head, "pool", "stats", "--attach", "shared", "--json", check=False)
        if "SUCCEEDED" in done.stdout:
            found.update(json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1]))
        return "SUCCEEDED" in done.stdout

    wait_until(asked, "the pool's statistics")
    return found


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', 'cluster.address="127.0.0.1:1"']
    done = rlep("train", BASE, *options(overrides), check=False)
    assert done.returncode == 1
    assert "no Ray cluster answers at '127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr
