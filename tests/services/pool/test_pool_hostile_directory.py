"""A pool directory that somebody else prepared: nothing in it runs, and nothing outside it is written."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from rlep.cli import app
from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.connection import connect
from tests.services.conftest import TOKENIZER
from tests.services.pool.embedded_data import append_only_file
from tests.services.pool.test_pool_redis_process import servers
from tests.waiting import wait_until

MakeTrajectory = Callable[..., Trajectory]


def resp(*words: str | bytes) -> bytes:
    """A command as Redis writes it."""
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


@pytest.fixture
def pool(tmp_path: Path, binary: Path, trajectory: MakeTrajectory) -> Iterator[Path]:
    """The directory of a pool with two records that nobody serves."""
    directory = tmp_path / "pool"
    with EmbeddedRedis(directory, binary) as server:
        opened = Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER, password_file=server.password_file)
        with opened as filled:
            assert filled.add([trajectory("q0", [1]), trajectory("q0", [2])]).inserted == 2
    wait_until(lambda: servers(directory) == [], "the server to end")
    yield directory
    wait_until(lambda: servers(directory) == [], "the server to end")


def refusal(pool: Path) -> str:
    """What ``rlep pool stats`` says; no server was started."""
    (pool / "redis.log").unlink(missing_ok=True)
    done = CliRunner().invoke(app, ["pool", "stats", "--embedded", str(pool), "--name", "pool"])
    assert done.exit_code in (1, 2), done.output
    assert not (pool / "redis.log").exists()
    return done.stderr.removeprefix("error: ").rstrip()


HOSTILE = [
    ("MODULE", "LOAD", "/tmp/evil.so"),
    ("module", "LOADEX", "/tmp/evil.so"),
    ("CONFIG", "SET", "dir", "/root/.ssh"),
    ("DEBUG", "SEGFAULT"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SLAVEOF", "127.0.0.1", "1"),
    ("MIGRATE", "127.0.0.1", "1", "k", "0", "1"),
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "0" * 40, "0"),
    ("FUNCTION", "LOAD", "#!lua name=x\n"),
    ("FCALL", "x", "0"),
    ("RESTORE", "k", "0", "x"),
    ("ACL", "SETUSER", "default", "nopass"),
    ("SHUTDOWN",),
    ("", "x"),
]


@pytest.mark.parametrize("words", HOSTILE, ids=lambda words: words[0] or "empty")
def test_a_command_that_no_pool_writes_is_refused_wherever_it_stands(pool: Path, words: tuple[str, ...]) -> None:
    file = append_only_file(pool)
    whole = file.read_bytes()
    middle = whole.index(b"*1\r\n$5\r\nMULTI")
    hidden = resp("MULTI") + resp(*words) + resp("EXEC")
    for content in (resp(*words) + whole, whole[:middle] + hidden + whole[middle:], whole + resp(*words) + b"\0" * 9):
        file.write_bytes(content)
        assert refusal(pool).startswith(
            f"{file} holds the command {words[0].upper()!r}, which no pool writes: it is not"
        )


@pytest.mark.parametrize(
    "text",
    [
        b"*+3\r\n$6\r\nMODULE\r\n",
        b"*3 x\r\n$6\r\nMODULE\r\n",
        b"*03\r\n$6\r\nMODULE\r\n",
        b"*3\n$6\r\nMODULE\r\n",
        b"*3\r\n$+6\r\nMODULE\r\n",
        b"#TS:1\r\n*2\r\n$6\r\nMODULE\r\n",
    ],
)
def test_what_only_redis_itself_would_read_as_a_command_is_refused(pool: Path, text: bytes) -> None:
    file = append_only_file(pool)
    file.write_bytes(file.read_bytes() + text + resp("LOAD", "/tmp/evil.so"))
    assert "is not written as Redis does, at byte " in refusal(pool)


def test_a_name_that_does_not_end_in_a_line_break_is_read_as_redis_reads_it(pool: Path) -> None:
    file = append_only_file(pool)
    file.write_bytes(file.read_bytes() + resp("MODULE", "LOAD", "/tmp/evil.so").replace(b"MODULE\r\n", b"MODULExx"))
    assert "holds the command 'MODULE', which no pool writes" in refusal(pool)


@pytest.mark.parametrize("head", [b"REDIS0009", b"VALKEY080"])
def test_a_file_that_begins_with_a_dump_is_refused(pool: Path, head: bytes) -> None:
    file = append_only_file(pool)
    file.write_bytes(head + bytes(100) + file.read_bytes())
    assert "does not begin with a command, as rlep's do: it is not loaded" in refusal(pool)


def test_a_script_in_the_file_is_blanked_and_the_pool_reads_on(pool: Path, binary: Path) -> None:
    file, script = append_only_file(pool), "return os.time() --" + "x" * 100
    file.write_bytes(resp("SELECT", "0") + resp("script", "load", script) + file.read_bytes())
    with EmbeddedRedis(pool, binary) as server:
        client = connect(server.url, password_file=server.password_file)
        assert isinstance(client, redis.Redis)
        sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        assert client.script_exists(sha) == [False]
        opened = Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER, password_file=server.password_file)
        with opened as filled:
            assert filled.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
        for words in ("MODULE LIST", "DEBUG SLEEP 0", "REPLICAOF NO ONE"):
            with pytest.raises(redis.ResponseError, match="unknown command"):
                client.execute_command(*words.split())
        client.close()


def test_a_text_in_a_record_that_looks_like_a_command_is_data(
    pool: Path, binary: Path, trajectory: MakeTrajectory
) -> None:
    for _ in range(2):
        with EmbeddedRedis(pool, binary) as server, connect(server.url, password_file=server.password_file) as client:
            client.set("text", resp("MODULE", "LOAD", "/tmp/evil.so"))
        wait_until(lambda: servers(pool) == [], "the server to end")


@pytest.mark.parametrize("name", ["users", "served", "watchdog.log", "redis.log", "password", "redis.conf", "other"])
def test_a_link_is_not_followed(pool: Path, tmp_path: Path, name: str) -> None:
    kept = tmp_path / "mine"
    kept.write_text("kept")
    (pool / name).unlink(missing_ok=True)
    (pool / name).symlink_to(kept)
    with pytest.raises(ConfigError, match=f"{pool / name} is a link or no regular file"):
        EmbeddedRedis(pool).start()
    assert kept.read_text() == "kept"


def test_the_password_file_cannot_bring_settings(pool: Path) -> None:
    (pool / "password").write_text("x\nloadmodule /tmp/evil.so")
    assert refusal(pool) == f"{pool}/password does not hold 64 hex digits, as rlep writes them: remove it"


def test_a_redis_conf_in_the_directory_is_replaced(pool: Path, binary: Path) -> None:
    (pool / "redis.conf").write_text("loadmodule /tmp/evil.so\n")
    with EmbeddedRedis(pool, binary):
        assert "loadmodule" not in (pool / "redis.conf").read_text()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o720])
def test_a_directory_that_others_could_change_is_refused_and_an_empty_one_made_private(
    pool: Path, tmp_path: Path, mode: int
) -> None:
    pool.chmod(mode)
    assert refusal(pool) == (
        f"pool directory {pool} has mode {mode:o}: others could change what it holds, so it is not opened. If it is yours, "
        f"chmod 700 {pool}"
    )
    assert pool.stat().st_mode & 0o777 == mode  # asked again, the same answer
    empty = tmp_path / "empty"
    empty.mkdir()
    empty.chmod(mode)
    with EmbeddedRedis(empty):
        assert empty.stat().st_mode & 0o777 == 0o700


def test_a_file_that_others_could_change_is_refused(pool: Path) -> None:
    append_only_file(pool).chmod(0o666)
    pool.chmod(0o711)
    assert f"{append_only_file(pool)} has mode 666: others can change it" in refusal(pool)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_directory_or_file_of_another_user_is_refused(pool: Path) -> None:
    os.chown(append_only_file(pool), 4711, -1)
    assert refusal(pool).startswith(f"{append_only_file(pool)} belongs to user 4711, not to you")
    os.chown(pool, 4711, -1)
    assert refusal(pool) == f"pool directory {pool} belongs to user 4711, not to you: it is not opened"


def test_a_manifest_of_redis_7_lists_its_own_files_only(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'v=7.2.0' && exit\nexit 1\n")
    program.chmod(0o700)
    parts = tmp_path / "pool" / "appendonlydir"
    parts.mkdir(parents=True)
    (tmp_path / "pool").chmod(0o700)
    for line in (
        "file ../../evil.aof seq 1 type b",
        'file "appendonly\\x2eaof" seq 1 type i',
        "file evil.base.rdb seq 1 type b",
    ):
        (parts / "appendonly.aof.manifest").write_text(line + "\n")
        with pytest.raises(PoolError, match="which rlep's do not: it is not loaded"):
            EmbeddedRedis(tmp_path / "pool", program).start()
    (parts / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (parts / "appendonly.aof.1.incr.aof").write_bytes(resp("MODULE", "LOAD", "/tmp/evil.so"))
    with pytest.raises(PoolError, match="holds the command 'MODULE'"):
        EmbeddedRedis(tmp_path / "pool", program).start()


def test_a_copy_of_ones_own_directory_opens(pool: Path, tmp_path: Path, binary: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pool, copy)
    with EmbeddedRedis(copy, binary) as server:
        opened = Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER, password_file=server.password_file)
        with opened as filled:
            assert filled.stats().trajectories == 2
    wait_until(lambda: servers(copy) == [], "the server to end")
