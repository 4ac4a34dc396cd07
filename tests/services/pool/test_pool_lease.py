"""Two drivers and one live pool, on a real Redis: the second is refused while the first lives, and takes over after its death."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlep import PoolClient
from rlep.core.errors import DeadlineExceeded, PoolError
from rlep.services.pool import lease
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions
from tests.services.conftest import TOKENIZER, MakeTrajectory
from tests.services.pool.pool_servers import serving

LEASE_S = 12.0
"""So that a refusal takes 4 s, and a driver that a busy machine delays for 8 s keeps its lease."""
DRIVER = """
import sys, threading
from rlep import PoolClient
from rlep.services.pool import lease
lease.LEASE_S = 2.0
client = PoolClient(sys.argv[1], pool="live", writer="run")
client.open(tokenizer_digest=sys.argv[2], holder="1 the run in /first on here")
print("open", flush=True)
threading.Event().wait()
"""


class Drivers:
    """Opens the live pool of one server for drivers by number."""

    def __init__(self, redis: EmbeddedRedis, address: str, keep: ExitStack) -> None:
        self.redis, self.address, self._keep = redis, address, keep

    def open(self, number: int, where: str, deadline: float = 30.0) -> PoolClient:
        """A client of the pool, open to the end of the test."""
        client = PoolClient(self.address, pool="live", writer="run", deadline=deadline)
        self._keep.enter_context(client)
        client.open(tokenizer_digest=TOKENIZER, holder=f"{number} the run in {where} on here")
        return client


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    with EmbeddedRedis(tmp_path) as redis, serving(redis) as server, ExitStack() as keep:
        monkeypatch.setattr(lease, "LEASE_S", LEASE_S)
        yield Drivers(redis, server.address, keep)


def test_a_second_driver_is_refused_by_name_and_the_first_goes_on(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    first = drivers.open(1, "/first")
    with pytest.raises(PoolError) as refused:
        drivers.open(2, "/second")
    assert str(refused.value) == (
        "pool live is written by the run in /first on here, and one at a time may: end that one (in this process, close its "
        "client), or choose another run.name or pool"
    )
    assert first.add([trajectory()]).inserted == 1  # not fenced


def test_what_was_closed_is_free_at_once(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    with ExitStack() as keep:
        Drivers(drivers.redis, drivers.address, keep).open(1, "/first")
    assert drivers.open(2, "/second").add([trajectory()]).inserted == 1


def test_the_same_driver_may_open_it_again(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    """Its pool actor was killed and is started again, before the lease of the first has ended."""
    drivers.open(1, "/first")
    assert drivers.open(1, "/first").add([trajectory()]).inserted == 1


def test_the_lease_of_a_killed_driver_ends(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    command = [sys.executable, "-c", DRIVER, drivers.address, TOKENIZER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        first.kill()
    assert drivers.open(2, "/second").add([trajectory()]).inserted == 1


def test_a_driver_whose_clock_was_set_back_is_the_newer_one_all_the_same(
    drivers: Drivers, trajectory: MakeTrajectory
) -> None:
    """Incarnations of a writer are counted: one of the year 2100, when they had the time as epoch, is not ahead of them."""
    options = PoolOptions(writer="run", writer_epoch=4_102_444_800_000)
    redis = drivers.redis
    with Pool.open(
        redis.url, "live", tokenizer_digest=TOKENIZER, password_file=redis.password_file, options=options
    ) as before:
        assert before.add([trajectory()]).inserted == 1
        assert drivers.open(1, "/first").add([trajectory()]).inserted == 1
        with pytest.raises(PoolError, match="a newer incarnation of this writer has taken over"):
            before.add([trajectory()])


def test_a_server_that_is_not_there_is_an_error_within_the_deadline() -> None:
    with (
        PoolClient("127.0.0.1:1", deadline=0.5) as client,
        pytest.raises(DeadlineExceeded, match="taking its lease at pool"),
    ):
        client.open(tokenizer_digest=TOKENIZER, holder="1 nobody")
