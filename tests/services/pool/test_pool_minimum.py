"""How many trajectories a question needs to be drawn: a matter of the call, by default of the pool, and never silent."""

from __future__ import annotations

import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError
from rlep.services.pool.rpc.server import PoolServer
from tests.services.conftest import MakeTrajectory, OpenClient

PROMPTS = ["q0", "q1", "q2", "q3"]
"""Question q<n> has n trajectories."""


@pytest.fixture
def client(open_client: OpenClient, trajectory: MakeTrajectory) -> PoolClient:
    """A client of a pool that a client made."""
    client = open_client()
    client.add([trajectory(f"q{n}", [n, i]) for n in range(4) for i in range(n)])
    return client


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


def test_a_minimum_changes_nothing_else_of_the_draw(client: PoolClient) -> None:
    default, stated = (client.sample(["q2", "q3"], 2, seed=5, step=7, minimum=minimum) for minimum in (None, 1))
    assert (default.ids, default.tokens.tolist()) == (stated.ids, stated.tokens.tolist())


@pytest.mark.parametrize("minimum", [0, -1, 1 << 31])
def test_a_minimum_that_cannot_be_is_refused(client: PoolClient, minimum: int) -> None:
    with pytest.raises(ConfigError):
        client.sample(PROMPTS, 2, seed=0, step=0, minimum=minimum)


def test_the_pool_keeps_the_minimum_that_it_was_made_with(
    open_client: OpenClient, pool_server: PoolServer, trajectory: MakeTrajectory
) -> None:
    """As the quickstart's, which trains with ``replay.minimum = 1``: a server gave nothing of questions with one answer."""
    open_client("made", minimum=1).add([trajectory("q1", [1])])
    for minimum, count in ((None, 1), (3, 0)):
        with PoolClient(pool_server.address, pool="made", minimum=minimum) as client:
            assert client.sample(["q1"], 2, seed=0, step=0).counts.tolist() == [count]
