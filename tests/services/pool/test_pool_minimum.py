"""How many trajectories a question needs to be drawn: a matter of the call, by default of the pool, and never silent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from rlep import AsyncPoolClient, PoolClient
from rlep.core.errors import ConfigError
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.server import PoolServer
from tests.services.conftest import MakeTrajectory, OpenPool
from tests.services.pool.pool_servers import serving

PROMPTS = ["q0", "q1", "q2", "q3"]
"""Question q<n> has n trajectories."""


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[PoolServer]:
    """A server of the same pools."""
    with serving(redis_server) as running:
        yield running


@pytest.fixture
def client(server: PoolServer, trajectory: MakeTrajectory, request: pytest.FixtureRequest) -> Iterator[PoolClient]:
    """A client of a pool that a client made."""
    with PoolClient(server.address, pool=f"minimum-{zlib.crc32(request.node.nodeid.encode())}") as connected:
        connected.add([trajectory(f"q{n}", [n, i]) for n in range(4) for i in range(n)])
        yield connected


def test_a_sample_says_which_questions_have_fewer_trajectories_than_the_pools_minimum(client: PoolClient) -> None:
    sample = client.sample(PROMPTS, 2, seed=0, step=0)
    assert sample.counts.tolist() == [0, 0, 2, 2]
    assert (sample.minimum, sample.below_minimum) == (2, ("q0", "q1"))
    assert sample.available is not None
    assert sample.available.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("minimum", "counts", "below"), [(1, [0, 1, 2, 2], ("q0",)), (3, [0, 0, 0, 2], ("q0", "q1", "q2"))]
)
def test_a_call_has_its_own_minimum(
    client: PoolClient, minimum: int, counts: list[int], below: tuple[str, ...]
) -> None:
    sample = client.sample(PROMPTS, 2, seed=0, step=0, minimum=minimum)
    assert (sample.counts.tolist(), sample.minimum, sample.below_minimum) == (counts, minimum, below)


async def test_the_awaited_client_has_it_too(client: PoolClient, server: PoolServer) -> None:
    async with AsyncPoolClient(server.address, pool=client._pool) as awaited:
        sample = await awaited.sample(PROMPTS, 2, seed=0, step=0, minimum=1)
    assert (sample.counts.tolist(), sample.below_minimum) == ([0, 1, 2, 2], ("q0",))


def test_a_minimum_changes_nothing_else_of_the_draw(client: PoolClient) -> None:
    default, stated = (client.sample(["q2", "q3"], 2, seed=5, step=7, minimum=minimum) for minimum in (None, 1))
    assert (default.ids, default.tokens.tolist()) == (stated.ids, stated.tokens.tolist())


@pytest.mark.parametrize("minimum", [0, -1, 1 << 31])
def test_a_minimum_that_cannot_be_is_refused(client: PoolClient, minimum: int) -> None:
    with pytest.raises(ConfigError):
        client.sample(PROMPTS, 2, seed=0, step=0, minimum=minimum)


def test_the_pool_keeps_the_minimum_that_it_was_made_with(
    open_pool: OpenPool, trajectory: MakeTrajectory, server: PoolServer
) -> None:
    """As the quickstart's, which trains with ``replay.minimum = 1``: a server gave nothing of questions with one answer."""
    made = open_pool(minimum=1)
    made.add([trajectory("q1", [1])])
    with PoolClient(server.address, pool=made.name) as client:
        assert client.sample(["q1"], 2, seed=0, step=0).counts.tolist() == [1]
    assert open_pool(minimum=3, read_only=True).sample(["q1"], 2, seed=0, step=0).below_minimum == ("q1",)
