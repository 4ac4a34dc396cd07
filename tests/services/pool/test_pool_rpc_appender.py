"""What a token that may append cannot do to a pool that others use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.server import PoolServer
from tests.services.pool.pool_servers import serving, token_file

MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    with serving(
        one_redis, token_file=token_file(tmp_path_factory.mktemp("tokens"), "append append-token\nadmin-token\n")
    ) as running:
        yield running


def client_of(server: PoolServer, token: str, pool: str, **options: object) -> PoolClient:
    return PoolClient(server.address, token=token, pool=pool, **options)  # type: ignore[arg-type]


def test_the_vocabulary_of_a_pool_with_records_is_not_an_appenders(
    server: PoolServer, trajectory: MakeTrajectory
) -> None:
    with client_of(server, "append-token", "used") as run:
        assert run.add([trajectory("q0", [999])]).inserted == 1
        with client_of(server, "append-token", "used", vocabulary=1) as hostile:
            assert hostile.add([trajectory("q0", [0])]).inserted == 1
        assert run.add([trajectory("q0", [998])]).inserted == 1
        assert run.sample(["q0"], 3, seed=0, step=0).counts.tolist() == [3]
    with client_of(server, "admin-token", "used", vocabulary=1000) as admin:
        assert admin.add([trajectory("q0", [1])]).inserted == 1
        (reason,) = admin.add([trajectory("q1", [1000]), trajectory("q1", [999])]).refused
        assert reason[1] == "prompt q1: token id 1000 ≥ vocabulary 1000"


def test_an_epoch_leaves_the_writers_next_incarnations_theirs(server: PoolServer, trajectory: MakeTrajectory) -> None:
    for epoch in (7, 8, int(time.time()), int(1000 * time.time())):
        with client_of(server, "append-token", "fenced", writer_epoch=epoch) as run:
            assert run.add([trajectory()]).inserted == 1
    last = (1 << 53) - 1
    with (
        client_of(server, "append-token", "fenced", writer_epoch=last) as hostile,
        pytest.raises(ConfigError, match=f"writer main: epoch {last} is beyond [0-9]+; the next one is {epoch + 1}"),
    ):
        hostile.add([trajectory()])
    with client_of(server, "append-token", "fenced", writer_epoch=epoch + 1) as run:
        assert run.add([trajectory()]).inserted == 1
    with (
        client_of(server, "append-token", "fenced", writer_epoch=epoch) as old,
        pytest.raises(PoolError, match="newer incarnation"),
    ):
        old.add([trajectory()])


@pytest.mark.parametrize("value", [1e30, -1e30, 2.0, -100_352.0])
def test_log_probs_that_no_model_gives_are_refused_alone(
    server: PoolServer, trajectory: MakeTrajectory, value: float
) -> None:
    wrong = replace(trajectory("q0", [1, 2]), logprobs=np.array([-0.5, value], np.float32))
    with client_of(server, "append-token", "probable") as client:
        report = client.add([wrong, trajectory("q0")])
    low, high = min(-0.5, value), max(-0.5, value)
    assert report.inserted == 1
    assert [reason for _, reason in report.refused] == [
        f"its log-probs run from {low:g} to {high:g}; they are within -100000 to 1"
    ]
