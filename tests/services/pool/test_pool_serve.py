"""``rlep pool serve`` as a process of its own: started, asked, killed, started again, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from typer.testing import CliRunner

from rlep import PoolClient
from rlep.cli import app
from rlep.core.errors import DeadlineExceeded, PoolError
from rlep.core.types import AddReport, Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.places import connected, hosted
from rlep.services.pool.rpc.service import PoolServicer
from rlep.services.pool.storage.store import NewRecord
from rlep.services.pool.values import PoolPlace
from tests.services.pool.pool_servers import serving
from tests.waiting import Gate, gate, wait_until

MakeTrajectory = Callable[..., Trajectory]
Serve = Callable[..., tuple["subprocess.Popen[str]", str]]
DEADLINE = 120.0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """``serve(*options)``: the process and the address it printed; it listens on a free port unless told."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str | Path, listen: str = "0", **environment: str) -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-m", "rlep", "pool", "serve", "--listen", listen, *map(str, options)]
        with (tmp_path / "stderr").open("a") as errors:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment}
            )
        started.append(process)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (tmp_path / "stderr").read_text()
        return process, address

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def held_add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Where calls that add to a pool stand."""
    add = Pool.add_entries
    with gate() as closed:

        def held(pool: Pool, entries: Sequence[NewRecord], *, call: str | None = None) -> AddReport:
            closed.pass_through()
            return add(pool, entries, call=call)

        monkeypatch.setattr(Pool, "add_entries", held)
        yield closed


def health(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        return int(HealthStub(channel).Check(HealthCheckRequest(), timeout=30).status)


def is_refused(client: PoolClient) -> bool:
    try:
        client.names()
    except DeadlineExceeded:
        return True
    return False


def redis_of(directory: Path) -> list[psutil.Process]:
    """Processes that serve an embedded Redis there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_embedded_one_is_healthy_serves_and_leaves_nothing(
    serve: Serve, tmp_path: Path, trajectory: MakeTrajectory, number: signal.Signals
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("some-admin-token\n")
    tokens.chmod(0o600)
    process, address = serve("--embedded", tmp_path / "pool", "--token-file", tokens)
    assert health(address) == HealthCheckResponse.SERVING
    assert "some-admin-token" not in " ".join(psutil.Process(process.pid).cmdline())
    with PoolClient(address, token="some-admin-token") as client:
        batch = [trajectory("q0", [1]), trajectory("q0", [2])]
        assert client.add(batch).inserted == 2
        assert client.names() == ["pool"]
        assert len(redis_of(tmp_path / "pool")) == 1
        process.send_signal(number)
        assert process.wait(DEADLINE) == 0
    wait_until(lambda: redis_of(tmp_path / "pool") == [], "Redis to end")
    assert process.stdout is not None
    assert process.stdout.read() == ""
    assert (tmp_path / "stderr").read_text().strip() == "stopping …"
    _, address = serve("--embedded", tmp_path / "pool", "--token-file", tokens, "--pool", "pool")
    with PoolClient(address, token="some-admin-token") as client:
        assert client.stats().trajectories == 2


def test_one_over_a_redis_of_somebody_else(serve: Serve, one_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    process, address = serve(
        "--redis", one_redis.url, "--pool", "mine", RLEP_REDIS_PASSWORD_FILE=str(one_redis.password_file)
    )
    assert health(address) == HealthCheckResponse.SERVING
    with PoolClient(address) as client, PoolClient(address, pool="other") as other:
        assert client.add([trajectory("q0", [1])]).inserted == 1
        assert other.add([trajectory("q0", [1])]).inserted == 1
        assert client.names() == ["mine", "other"]
    process.terminate()
    assert process.wait(DEADLINE) == 0


def test_a_call_under_way_ends_when_the_server_stops_and_no_other_begins(
    one_redis: EmbeddedRedis, trajectory: MakeTrajectory, held_add: Gate
) -> None:
    with (
        serving(one_redis) as server,
        PoolClient(server.address, pool="under-way") as client,
        ThreadPoolExecutor() as threads,
    ):
        adding = threads.submit(client.add, [trajectory("q", [1])])
        held_add.wait_for_somebody()
        stopping = threads.submit(server.stop)
        with PoolClient(server.address, deadline=0.5) as late:
            wait_until(lambda: is_refused(late), "new calls to be refused")
        assert not stopping.done()
        held_add.open()
        assert adding.result(DEADLINE).inserted == 1
        stopping.result(DEADLINE)


def test_whoever_watches_the_health_is_told_and_does_not_hold_the_server_up(
    serve: Serve, tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    process, address = serve("--embedded", tmp_path / "pool")
    with PoolClient(address) as run, grpc.insecure_channel(address) as channel:
        assert run.add([trajectory("q", [1])]).inserted == 1
        watched = HealthStub(channel).Watch(HealthCheckRequest(), timeout=DEADLINE)
        assert next(watched).status == HealthCheckResponse.SERVING
        process.terminate()
        assert [answer.status for answer in watched] == [HealthCheckResponse.NOT_SERVING]  # ended, not broken off
        assert process.wait(DEADLINE) == 0
    with EmbeddedRedis(tmp_path / "pool") as redis, serving(redis) as server, PoolClient(server.address) as run:
        assert run.stats().trajectories == 1


def test_who_names_the_directory_of_a_server_uses_its_pool(
    serve: Serve, tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    _, address = serve("--embedded", tmp_path / "pool")
    place = PoolPlace(None, tmp_path / "pool", "pool")
    with PoolClient(address) as other, hosted(place), connected(place, deadline=20.0) as client:
        assert other.add([trajectory("q", [1])]).inserted == 1
        assert client.stats().trajectories == 1


def test_a_call_that_a_stopping_server_cancels_comes_again(
    one_redis: EmbeddedRedis, trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = PoolServicer.Add, []

    def cancelled_first(servicer: PoolServicer, request_iterator: Any, context: Any) -> Any:
        calls.append(context)
        if len(calls) == 1:
            context.abort(grpc.StatusCode.CANCELLED, "the server is stopping")
        return add(servicer, request_iterator, context)

    monkeypatch.setattr(PoolServicer, "Add", cancelled_first)
    with serving(one_redis) as server, PoolClient(server.address, pool="cancelled") as client:
        assert client.add([trajectory("q", [1])]).inserted == 1
    assert len(calls) == 2


def test_a_client_that_is_closed_ends_its_calls(
    one_redis: EmbeddedRedis, trajectory: MakeTrajectory, held_add: Gate
) -> None:
    with serving(one_redis) as server, ThreadPoolExecutor() as threads:
        client = PoolClient(server.address, pool="closed")
        adding = threads.submit(client.add, [trajectory("q", [1])])
        held_add.wait_for_somebody()
        client.close()
        with pytest.raises(PoolError, match=r"adding .* this client was closed"):
            adding.result(DEADLINE)
        with pytest.raises(PoolError, match=r"listing pools at pool server .*: this client was closed"):
            client.names()
        held_add.open()


def test_a_server_without_its_redis_says_so(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as redis, serving(redis) as server:
        assert health(server.address) == HealthCheckResponse.SERVING
        (program,) = [p for p in redis_of(tmp_path / "redis") if "redis" in p.name() or "valkey" in p.name()]
        program.suspend()
        wait_until(lambda: health(server.address) == HealthCheckResponse.NOT_SERVING, "the loss to be said")
        program.resume()
        wait_until(lambda: health(server.address) == HealthCheckResponse.SERVING, "the server to serve again")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "either --embedded DIRECTORY or --redis URL"),
        (["--embedded", "x", "--redis", "unix:///x"], "either --embedded DIRECTORY or --redis URL"),
        (["--embedded", "x", "--tls-cert", "x"], "TLS needs --tls-cert and --tls-key together"),
        (["--embedded", "x", "--pool", ""], "pool name '' is not 1 to 64 letters, digits or ._-"),
        (["--embedded", "x", "--pool", "a/b"], "pool name 'a/b' is not 1 to 64 letters, digits or ._-"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["pool", "serve", *options])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_beyond_loopback_nothing_starts_without_tokens(
    one_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "RLEP_REDIS_PASSWORD_FILE", str(one_redis.password_file))
    result = CliRunner().invoke(app, ["pool", "serve", "--redis", one_redis.url, "--listen", "0.0.0.0:0"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "0.0.0.0:0 can be reached from other machines: it needs a token file and TLS" in result.stderr


def test_a_port_that_is_taken_is_not_shared(one_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RLEP_REDIS_PASSWORD_FILE", str(one_redis.password_file))
    with serving(one_redis) as server:
        result = CliRunner().invoke(app, ["pool", "serve", "--redis", one_redis.url, "--listen", server.address])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{server.address} cannot be listened on" in result.stderr
