"""Redis killed, stopped, full, or not what a pool needs, while writers write: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from rlep import PoolClient
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.checks import memory_of
from rlep.services.pool.values import PoolOptions
from tests.services.pool.pool_servers import serving
from tests.services.pool.tcp_proxy import proxied
from tests.waiting import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
MakeTrajectory = Callable[..., Trajectory]
TOKENIZER = "tokenizer-digest"


@pytest.fixture
def server(tmp_path: Path, binary: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "data", binary) as running:
        yield running


def open_pool(server: EmbeddedRedis, **options: object) -> Pool:
    return Pool.open(
        server.url,
        "pool",
        tokenizer_digest=TOKENIZER,
        password_file=server.password_file,
        options=PoolOptions(**options),  # type: ignore[arg-type]
    )


def pool_at(url: str, **options: object) -> Pool:
    return Pool.open(url, "pool", tokenizer_digest=TOKENIZER, options=PoolOptions(**options))  # type: ignore[arg-type]


@contextmanager
def bare_server(binary: Path, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server that this process has started itself, and its address; killed in the end."""
    settings = ["--port", "0", "--unixsocket", "s", "--appendonly", "yes", "--save", ""]
    # Python ignores SIGXFSZ, which would end the server where a file may not grow; so must the server.
    process = subprocess.Popen([binary, *settings], cwd=directory, stdout=subprocess.DEVNULL, restore_signals=False)
    try:
        yield process, f"unix://{directory / 's'}"
    finally:
        process.kill()
        process.wait()


def process_of(server: EmbeddedRedis) -> psutil.Process:
    """The server's process; waits for one that is being started again."""
    names, found = ("redis-server", "valkey-server"), list[psutil.Process]()

    def there() -> list[psutil.Process]:
        all_of_them = psutil.process_iter(["name", "cwd"])
        found[:] = [p for p in all_of_them if p.info["cwd"] == str(server.directory) and p.info["name"] in names]
        return found

    wait_until(there, "a server")
    return found[0]


@contextmanager
def impatient(pool: Pool, seconds: float) -> Iterator[None]:
    """Meanwhile an operation that fails does so after so many seconds; one that succeeds has its usual time elsewhere."""
    usual, pool._link.deadline = pool._link.deadline, seconds
    try:
        yield
    finally:
        pool._link.deadline = usual


def test_a_full_disk_refuses_writes_goes_on_reading_and_loses_nothing(
    binary: Path, tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    """The limit on file sizes stands for the disk: writing beyond it fails like writing to a full one."""
    kept, more = ([trajectory(f"q{i % 5}") for i in range(50)] for _ in range(2))
    with bare_server(binary, tmp_path) as (process, url), pool_at(url) as pool:
        pool.add(kept)
        size = max(path.stat().st_size for path in tmp_path.rglob("*aof*") if path.is_file())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
        for _ in range(2):  # Redis itself acknowledges the write that finds the disk full
            with (
                impatient(pool, 2.0),
                pytest.raises(PoolError, match=r"refuses writes: it cannot write its append-only file; reads go on"),
            ):
                pool.add(more)
        prompt_ids = sorted({t.prompt_id for t in kept})
        assert pool.sample(prompt_ids, 2, seed=0, step=0).counts.tolist() == [2] * 5
    with bare_server(binary, tmp_path) as (process, url), pool_at(url) as pool:
        assert {t.content_id for t in kept} <= {c for p in prompt_ids for c in pool.content_ids(p)}
        report = pool.add(more)
        assert report.inserted + report.duplicates == 50
        process.kill()
    with bare_server(binary, tmp_path) as (_, url), pool_at(url) as pool:
        held = [content_id for prompt_id in prompt_ids for content_id in pool.content_ids(prompt_id)]
        assert sorted(held) == sorted(t.content_id for t in kept + more)


def test_a_redis_that_stays_away_runs_into_the_deadline(server: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    with open_pool(server) as pool:
        client = pool._link.client
        assert isinstance(client, redis.Redis)
        client.connection_pool.connection_kwargs |= {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        client.connection_pool.disconnect()
        process = process_of(server)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with (
                impatient(pool, 1.0),
                pytest.raises(DeadlineExceeded, match="pool pool: adding: no answer from Redis within 1 s"),
            ):
                pool.add([trajectory()])
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert pool.add([trajectory("q0", [77])]).inserted == 1
    server.stop()
    with pytest.raises(DeadlineExceeded, match=r"no answer from Redis within 0.5 s"):
        open_pool(server, deadline=0.5)


def test_a_full_redis_refuses_writes_by_name_and_goes_on_reading(
    server: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    with open_pool(server) as pool:
        kept = [trajectory("q0", [1]), trajectory("q0", [2])]
        pool.add(kept)
        before = pool.digest()
        pool._link.client.config_set("maxmemory", 1000)
        out_of_memory = pytest.raises(PoolError, match=r"refuses writes: it is out of memory .*reads go on")
        with impatient(pool, 1.0), out_of_memory:
            pool.add([trajectory(f"q{i}", [i]) for i in range(20)])
        assert pool.digest() == before
        assert pool.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
        with pytest.raises(PoolError, match="no room for new answers"):
            open_pool(server)
        assert open_pool(server, read_only=True).sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
        pool._link.client.config_set("maxmemory", 0)
        assert pool.add(kept).duplicates == 2
        assert pool.stats().trajectories == 2


def test_a_full_redis_is_served_and_room_can_be_made_in_it(
    server: EmbeddedRedis, trajectory: MakeTrajectory, caplog: pytest.LogCaptureFixture
) -> None:
    with open_pool(server) as pool:
        redis_itself = pool._link.client
        pool.add([trajectory("q0", [number]) for number in range(4)])
        redis_itself.config_set("maxmemory", 1000)
        with serving(server) as running, PoolClient(running.address, pool="pool") as client:
            assert "no room for new answers" in caplog.text
            first, second, *_ = client.content_ids("q0")
            assert client.remove("q0", [first]) == 1
            assert client.remove("q0", [second], quarantine=True) == 1
            stats = client.stats()
            assert (stats.trajectories, stats.quarantined, stats.by_policy) == (2, 1, {"policy@3": 2})
            assert client.remove("q0", [second], quarantined=True) == 1
            # Large, so that what connections take does not matter: from 97 % on nobody begins to add.
            redis_itself.config_set("maxmemory", 0)
            redis_itself.setrange("other", 1 << 25, b".")
            redis_itself.config_set("maxmemory", int(memory_of(pool._link)[0] / 0.97))
            with pytest.raises(PoolError, match="no room for new answers"):
                client.open(tokenizer_digest=TOKENIZER)
            assert client.seal() == client.digest()


def test_room_given_within_the_deadline_lets_the_write_through(
    server: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    with open_pool(server) as pool, open_pool(server) as admin:
        redis_itself = admin._link.client
        assert isinstance(redis_itself, redis.Redis)

        def refusals() -> int:
            """Errors that Redis has replied with; a script it was not given yet is none."""
            found = redis_itself.info("errorstats")
            return sum(error["count"] for name, error in found.items() if name != "errorstat_NOSCRIPT")

        before = refusals()
        redis_itself.config_set("maxmemory", 1000)

        def give_room() -> None:
            wait_until(lambda: refusals() > before, "a write that is refused")
            redis_itself.config_set("maxmemory", 0)

        relief = threading.Thread(target=give_room)
        relief.start()
        assert pool.add([trajectory()]).inserted == 1
        relief.join()


@pytest.mark.parametrize("opened_again", [False, True])
def test_after_a_failover_behind_one_address_the_new_primary_is_written(
    binary: Path, tmp_path: Path, trajectory: MakeTrajectory, opened_again: bool
) -> None:
    """Connections to the primary of before stay open: it has become a replica, and says so."""
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
    with (
        bare_server(binary, places[0]) as (_, first),
        bare_server(binary, places[1]) as (_, second),
        proxied(str(places[0] / "s")) as proxy,
        pool_at(first) as demoted,
        pool_at(second) as promoted,
        pool_at(f"redis://{proxy.address}") as pool,
    ):
        demoted._link.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        proxy.target = str(places[1] / "s")
        if opened_again:
            Pool.open(pool._link.client, "pool", tokenizer_digest=TOKENIZER)
        assert pool.add([trajectory()]).inserted == promoted.stats().trajectories == 1


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("maxmemory-policy", "allkeys-lru", r"drops keys .*allkeys-lru.*set maxmemory-policy noeviction"),
        ("appendonly", "no", r"no append-only file.*appendonly yes and appendfsync everysec$"),
        ("replicaof", "127.0.0.1 1", r"is a slave, which takes no writes"),
    ],
)
def test_a_redis_that_would_lose_records_is_refused_with_the_remedy(
    binary: Path, tmp_path: Path, setting: str, value: str, message: str
) -> None:
    with bare_server(binary, tmp_path) as (_, url), pool_at(url) as pool:
        client = pool._link.client
        if setting == "replicaof":
            client.execute_command("REPLICAOF", *value.split())
        else:
            client.config_set(setting, value)
        with pytest.raises(PoolError, match=message):
            pool_at(url)
        if setting == "appendonly":
            pool_at(url, allow_volatile=True).close()


@pytest.mark.parametrize(
    "url",
    ["redis://:guess-4711@127.0.0.1", "rediss://me:guess-4711@127.0.0.1/0", "unix:///s?password=guess-4711",
     "rediss://127.0.0.1?ssl_password=guess-4711", "redis://127.0.0.1?%70assword=guess-4711"],
)  # fmt: skip
def test_an_address_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="holds a password, which logs would show") as caught:
        pool_at(url)
    assert "guess-4711" not in str(caught.value)


def test_wrong_credentials_are_named_at_once_and_without_the_secret(server: EmbeddedRedis, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("guess-4711")
    with pytest.raises(PoolError, match="refuses these credentials") as caught:
        Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER, password_file=wrong)
    assert "guess-4711" not in str(caught.value)
    with pytest.raises(PoolError, match="refuses"):
        Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER)
