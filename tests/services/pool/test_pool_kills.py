"""``kill -9`` of the pool server, of its clients, and of the Redis behind it, at named points of concurrent inserts."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import redis

from rlep import PoolClient
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.connection import connect
from rlep.services.pool.values import PoolOptions
from tests.services.pool.pool_history import Call, History, check
from tests.services.pool.pool_kills import (
    SERVER_POINTS,
    WRITER_POINTS,
    Action,
    Processes,
    Trap,
    processes,
    serve,
    status_of,
    write,
)
from tests.services.pool.pool_servers import reserved_address
from tests.services.pool.pool_writer import BATCH
from tests.waiting import wait_until

KILLED = -signal.SIGKILL


@dataclass
class Place:
    """Where servers and writers meet: a pool that keeps all of a question."""

    redis: EmbeddedRedis
    address: str
    started: Processes
    directory: Path

    def open(self) -> Pool:
        server, options = self.redis, PoolOptions(cap=100_000)
        digest, password = "tokenizer-digest", server.password_file
        return Pool.open(server.url, "pool", tokenizer_digest=digest, password_file=password, options=options)

    def serve(self, *traps: Trap, patience: float = 5.0) -> BaseProcess:
        return self.started.start(serve, self.redis.directory, self.address, traps, patience)

    def history(self, name: object) -> History:
        return History(self.directory / f"writer-{name}")

    def write(self, number: int, history: History, *traps: Trap) -> BaseProcess:
        return self.started.start(write, self.address, number, history.file, self.directory / "end", traps)

    def end(self, writers: Sequence[BaseProcess], histories: Sequence[History]) -> None:
        """Let each writer add two batches more, and end."""
        before = [history.answered() for history in histories]
        wait_until(
            lambda: all(history.answered() >= n + 2 for history, n in zip(histories, before, strict=True)),
            "two batches of each writer",
        )
        (self.directory / "end").touch()
        assert [status_of(writer) for writer in writers] == [0] * len(writers)

    def check(self, server: BaseProcess, histories: Sequence[tuple[int, History]]) -> tuple[int, list[Call]]:
        """The histories against the pool, and the pool itself against what a client exports; then stop the server."""
        with self.open() as pool, PoolClient(self.address) as client:
            held, calls = check(client, histories)
            assert sorted(t.content_id for t in client.export()) == sorted(
                content_id for prompt_id in pool.prompt_ids() for content_id in pool.content_ids(prompt_id)
            )
        server.terminate()
        assert status_of(server) == 0
        return held, calls


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with EmbeddedRedis(tmp_path / "redis") as server, reserved_address() as address, processes() as started:
        place = Place(server, address, started, tmp_path)
        place.open().close()
        yield place


def points(names: Sequence[str], times: int, *, seed: int, action: Action = "die") -> list[Trap]:
    """Each point so many times, in an order and at occurrences that the seed gives."""
    draw = random.Random(seed)
    traps = [Trap(name, draw.randint(1, 8), action) for name in names for _ in range(times)]
    draw.shuffle(traps)
    return traps


def inserted(calls: Sequence[Call]) -> int:
    return sum(call.report[0] for call in calls if call.report is not None)


WRITERS = (0, 0, 1, 2)  # the first two add the same records


def test_a_server_killed_at_18_points_loses_and_doubles_nothing(place: Place) -> None:
    histories = [place.history(n) for n in range(len(WRITERS))]
    writers = [place.write(number, history) for number, history in zip(WRITERS, histories, strict=True)]
    for trap in points(SERVER_POINTS, 3, seed=4):
        assert status_of(place.serve(trap)) == KILLED, trap
    server = place.serve()
    place.end(writers, histories)
    held, calls = place.check(server, list(zip(WRITERS, histories, strict=True)))
    # Every call came to its end, so that each record was told to be inserted exactly once.
    assert all(call.begun == 1 and call.report is not None for call in calls)
    assert inserted(calls) == held


def test_clients_killed_at_20_points_lose_and_double_nothing(place: Place) -> None:
    server, histories = place.serve(), [place.history(n) for n in range(4)]
    cut = defaultdict[tuple[int, int], list[str]](list)  # (writer, serial) -> the points at which it was killed
    rounds = points(WRITER_POINTS, 4, seed=5)
    for start in range(0, len(rounds), 4):
        traps = rounds[start : start + 4]
        writers = [place.write(n, histories[n], trap) for n, trap in enumerate(traps)]
        assert [status_of(writer) for writer in writers] == [KILLED] * 4, traps
        for n, trap in enumerate(traps):
            last = histories[n].calls()[-1]
            assert (last.report is None) == (trap.point != "noted")
            if last.report is None:
                cut[n, last.serial].append(trap.point)
    place.end([place.write(n, histories[n]) for n in range(4)], histories)
    held, _ = place.check(server, list(enumerate(histories)))
    for n, history in enumerate(histories):
        for call in history.calls():
            at = cut[n, call.serial]
            assert call.begun == 1 + len(at)
            if "replied" in at:
                assert call.report == (0, BATCH, 0)
            elif "sent" not in at:  # nothing of a batch that was not whole is stored
                assert call.report == (BATCH, 0, 0), at
    assert held == BATCH * sum(len(history.calls()) for history in histories)


def test_redis_killed_at_18_points_of_a_running_server_loses_and_doubles_nothing(place: Place) -> None:
    traps = points(SERVER_POINTS, 3, seed=6, action="kill Redis")
    server, histories = place.serve(*traps), [place.history(n) for n in range(len(WRITERS))]
    writers = [place.write(number, history) for number, history in zip(WRITERS, histories, strict=True)]
    log = place.redis.directory / "redis.log"
    wait_until(lambda: log.read_text().count("Server initialized") == 1 + len(traps), "the last start of Redis")
    place.end(writers, histories)
    held, calls = place.check(server, list(zip(WRITERS, histories, strict=True)))
    assert all(call.begun == 1 and call.report is not None for call in calls)
    assert inserted(calls) == held


@pytest.mark.parametrize("point", ["within the script", "script sent"])
def test_a_redis_that_stands_still_for_3_seconds_stores_nothing_twice(place: Place, point: str) -> None:
    """Each answer is waited for 0.5 s: calls are sent again while the first ones still lie in the socket."""
    with connect(place.redis.url, password_file=place.redis.password_file) as client:
        assert isinstance(client, redis.Redis)
        program = psutil.Process(client.info("server")["process_id"])
    server = place.serve(Trap(point, 9, "stop Redis"), patience=0.5)
    histories = [place.history(n) for n in range(len(WRITERS))]
    writers = [place.write(number, history) for number, history in zip(WRITERS, histories, strict=True)]
    wait_until(lambda: program.status() == psutil.STATUS_STOPPED, "Redis to be stopped")
    time.sleep(3)  # the stall itself; a longer one only sends more calls again
    os.kill(program.pid, signal.SIGCONT)
    place.end(writers, histories)
    held, calls = place.check(server, list(zip(WRITERS, histories, strict=True)))
    assert all(call.begun == 1 and call.report is not None for call in calls)
    assert inserted(calls) == held
