"""Two drivers and one live pool, on a real Redis: the second is refused while the first lives, and takes over after its death."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlep.core.errors import DeadlineExceeded, PoolError
from rlep.services.pool import lease
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.opening import open_pool
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions
from tests.services.conftest import TOKENIZER, MakeTrajectory

LEASE_S = 12.0
"""So that a refusal takes 4 s, and a driver that a busy machine delays for 8 s keeps its lease."""
DRIVER = """
import sys, threading
from pathlib import Path
from rlep.services.pool import lease
from rlep.services.pool.opening import open_pool
from rlep.services.pool.values import PoolOptions
lease.LEASE_S = 2.0
options = PoolOptions(writer="run", holder="1 the run in /first on here")
with open_pool(sys.argv[1], Path(), "live", tokenizer_digest=sys.argv[2], options=options):
    print("open", flush=True)
    threading.Event().wait()
"""


class Drivers:
    """Opens the live pool of one Redis for drivers by number."""

    def __init__(self, server: EmbeddedRedis, keep: ExitStack) -> None:
        self.server, self._keep = server, keep

    def open(self, number: int, where: str, deadline: float = 30.0) -> Pool:
        """The pool, open to the end of the test."""
        holder = f"{number} the run in {where} on here"
        options = PoolOptions(writer="run", holder=holder, deadline=deadline)
        opened = open_pool(self.server.url, Path(), "live", tokenizer_digest=TOKENIZER, options=options)
        return self._keep.enter_context(opened)


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    with EmbeddedRedis(tmp_path) as server, ExitStack() as keep:
        monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", str(server.password_file))
        monkeypatch.setattr(lease, "LEASE_S", LEASE_S)
        yield Drivers(server, keep)


def test_a_second_driver_is_refused_by_name_and_the_first_goes_on(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    first = drivers.open(1, "/first")
    with pytest.raises(PoolError) as refused:
        drivers.open(2, "/second")
    assert str(refused.value) == (
        "pool live is written by the run in /first on here, and one at a time may: end that one, or choose another run.name"
    )
    assert first.add([trajectory()]).inserted == 1  # not fenced


def test_what_was_closed_is_free_at_once(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    with ExitStack() as keep:
        Drivers(drivers.server, keep).open(1, "/first")
    assert drivers.open(2, "/second").add([trajectory()]).inserted == 1


def test_the_same_driver_may_open_it_again(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    """Its pool actor was killed and is started again, before the lease of the first has ended."""
    drivers.open(1, "/first")
    assert drivers.open(1, "/first").add([trajectory()]).inserted == 1


def test_the_lease_of_a_killed_driver_ends(drivers: Drivers, trajectory: MakeTrajectory) -> None:
    command = [sys.executable, "-c", DRIVER, drivers.server.url, TOKENIZER]
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
    with Pool.open(drivers.server.url, "live", tokenizer_digest=TOKENIZER, options=options) as before:
        assert before.add([trajectory()]).inserted == 1
        assert drivers.open(1, "/first").add([trajectory()]).inserted == 1
        with pytest.raises(PoolError, match="a newer incarnation of this writer has taken over"):
            before.add([trajectory()])


def test_a_redis_that_is_not_there_is_an_error_within_the_deadline(drivers: Drivers) -> None:
    drivers.server.stop()
    with pytest.raises(DeadlineExceeded, match=r"pool live: taking its lease: no answer from Redis within 0.5 s"):
        drivers.open(1, "/first", deadline=0.5)
