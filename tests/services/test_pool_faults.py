"""Redis killed, stopped, full, or not what a pool needs, while writers write: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from rlep.errors import DeadlineExceeded, PoolError
from rlep.services.pool.pool import Pool
from rlep.services.pool.redis_process import EmbeddedRedis
from rlep.services.pool.values import AddReport, PoolOptions
from rlep.types import Trajectory

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


def process_of(server: EmbeddedRedis) -> psutil.Process:
    """The server's process; waits for one that is being started again."""
    while True:
        for process in psutil.process_iter(["name", "cwd"]):
            if process.info["cwd"] == str(server.directory) and process.info["name"] in (
                "redis-server",
                "valkey-server",
            ):
                return process
        time.sleep(0.02)


class Writer(threading.Thread):
    """Adds small batches until told to stop, and keeps what it was told about each."""

    def __init__(self, pool: Pool, trajectory: MakeTrajectory, number: int) -> None:
        super().__init__()
        self.pool, self.make, self.number = pool, trajectory, number
        self.history: list[tuple[list[Trajectory], AddReport]] = []
        self.failure: Exception | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        serial = 0
        try:
            while not self.ended.is_set():
                batch = [self.make(f"q{(serial + i) % 5}", [self.number, serial + i]) for i in range(8)]
                self.history.append((batch, self.pool.add(batch)))
                serial += 8
        except Exception as error:  # noqa: BLE001 -- shown by the test's own thread
            self.failure = error


def check_history(pool: Pool, writers: list[Writer]) -> None:
    """Every batch was new and acknowledged as inserted, is there, and is there once; counters agree with records."""
    wanted: set[str] = set()
    for writer in writers:
        assert writer.failure is None, writer.failure
        assert len(writer.history) > 2
        for batch, report in writer.history:
            assert (report.inserted, report.duplicates, report.refused) == (8, 0, ())
            wanted |= {t.content_id for t in batch}
    found = [content_id for prompt_id in pool.prompt_ids() for content_id in pool.content_ids(prompt_id)]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    stats = pool.stats()
    assert stats.trajectories == len(wanted) == sum(stats.by_policy.values())
    prompt_id = pool.prompt_ids()[0]
    for content_id in pool.content_ids(prompt_id)[:20]:
        assert pool.get(content_id, prompt_id) is not None


def test_redis_killed_again_and_again_under_four_writers(server: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    with open_pool(server, cap=100_000, deadline=60.0) as pool:
        writers = [Writer(pool, trajectory, number) for number in range(4)]
        for writer in writers:
            writer.start()
        pauses = random.Random(5)
        for _ in range(5):
            time.sleep(pauses.uniform(0.05, 0.5))
            process = process_of(server)
            process.kill()
            process.wait()
            pool.ping()
        for writer in writers:
            writer.ended.set()
            writer.join()
        check_history(pool, writers)


def test_a_stall_longer_than_a_clients_patience_stores_nothing_twice(
    server: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    # Each answer is waited for 0.5 s, the stall takes 2 s: calls are sent again while the first still lies in the socket.
    with open_pool(server, cap=100_000) as pool:
        client = pool._link.client
        assert isinstance(client, redis.Redis)
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.5
        client.connection_pool.disconnect()
        writers = [Writer(pool, trajectory, number) for number in range(2)]
        for writer in writers:
            writer.start()
        process = process_of(server)
        for _ in range(2):
            time.sleep(0.2)
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.2)
        for writer in writers:
            writer.ended.set()
            writer.join()
        check_history(pool, writers)


def test_a_redis_that_stays_away_runs_into_the_deadline(server: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    with open_pool(server, deadline=1.0) as pool:
        process = process_of(server)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceeded, match="pool pool: adding: no answer from Redis within 1 s"):
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
    with open_pool(server, deadline=1.0) as pool:
        kept = [trajectory("q0", [1]), trajectory("q0", [2])]
        pool.add(kept)
        before = pool.digest()
        pool._link.client.config_set("maxmemory", 1000)
        with pytest.raises(PoolError, match=r"refuses writes: it is out of memory .*reads go on"):
            pool.add([trajectory(f"q{i}", [i]) for i in range(20)])
        assert pool.digest() == before
        assert pool.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
        with pytest.raises(PoolError, match="no room for new answers"):
            open_pool(server)
        assert open_pool(server, read_only=True).sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
        pool._link.client.config_set("maxmemory", 0)
        assert pool.add(kept).duplicates == 2
        assert pool.stats().trajectories == 2


def test_room_given_within_the_deadline_lets_the_write_through(
    server: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    with open_pool(server) as pool, open_pool(server) as admin:
        admin._link.client.config_set("maxmemory", 1000)
        relief = threading.Timer(0.5, admin._link.client.config_set, ("maxmemory", 0))
        relief.start()
        assert pool.add([trajectory()]).inserted == 1
        relief.join()


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("maxmemory-policy", "allkeys-lru", r"drops keys .*allkeys-lru.*set maxmemory-policy noeviction"),
        ("appendonly", "no", r"no append-only file.*appendonly yes.*allow_volatile"),
        ("replicaof", "127.0.0.1 1", r"is a slave, which takes no writes"),
    ],
)
def test_a_redis_that_would_lose_records_is_refused_with_the_remedy(
    server: EmbeddedRedis, setting: str, value: str, message: str
) -> None:
    with open_pool(server) as pool:
        client = pool._link.client
        if setting == "replicaof":
            client.execute_command("REPLICAOF", *value.split())
        else:
            client.config_set(setting, value)
        with pytest.raises(PoolError, match=message):
            open_pool(server, deadline=2.0)
        if setting == "appendonly":
            open_pool(server, allow_volatile=True).close()


def test_wrong_credentials_are_named_at_once_and_without_the_secret(server: EmbeddedRedis, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("guess-4711")
    with pytest.raises(PoolError, match="refuses these credentials") as caught:
        Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER, password_file=wrong)
    assert "guess-4711" not in str(caught.value)
    with pytest.raises(PoolError, match="refuses"):
        Pool.open(server.url, "pool", tokenizer_digest=TOKENIZER)
