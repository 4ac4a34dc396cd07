"""A draw is uniform, and a pure function of (content, seed, step, prompt id) on a real Redis."""

from __future__ import annotations

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import content_id_of
from rlep.services.pool.storage.sample import Sample
from tests.services.conftest import MakeTrajectory, OpenClient, OpenPool

# 99.9 % quantiles of χ² with n - 1 degrees of freedom (tables).
CHI2_999 = {3: 13.816, 24: 49.728}


def drawn(sample: Sample) -> dict[str, list[str]]:
    """Prompt id -> content ids, in the order drawn."""
    bounds = np.concatenate([[0], np.cumsum(sample.counts)]).tolist()
    return {p: list(sample.ids[a:b]) for p, a, b in zip(sample.prompt_ids, bounds, bounds[1:], strict=False)}


@pytest.fixture
def filled(open_client: OpenClient, trajectory: MakeTrajectory) -> PoolClient:
    """Prompt ``qN`` has N trajectories of 1 to 3 tokens, for N = 0 … 9."""
    pool = open_client()
    pool.add([trajectory(f"q{n}", [*[n, i, 5][: 1 + i % 3], 100 + i]) for n in range(10) for i in range(n)])
    return pool


PROMPTS = [f"q{n}" for n in range(10)]


def test_a_prompt_gives_at_most_m_of_what_it_has_and_none_below_the_minimum(filled: PoolClient) -> None:
    assert filled.sample(PROMPTS, 3, seed=1, step=1).counts.tolist() == [0, 0, 2, 3, 3, 3, 3, 3, 3, 3]
    assert filled.sample(["q1", "unknown", "q2"], 1, seed=1, step=1).counts.tolist() == [0, 0, 1]
    assert filled.sample(PROMPTS, 0, seed=1, step=1).counts.tolist() == [0] * 10
    nothing = filled.sample([], 2, seed=1, step=1)
    assert (nothing.counts.shape, nothing.tokens.shape, nothing.offsets.tolist()) == ((0,), (0,), [0])
    with pytest.raises(ConfigError, match="count = -1"):
        filled.sample(["q2"], -1, seed=1, step=1)


def test_columns_hold_what_the_records_hold(filled: PoolClient) -> None:
    sample = filled.sample(["q5", "q0", "q2"], 4, seed=3, step=9)
    assert sample.counts.tolist() == [4, 0, 2]
    assert sample.tokens.dtype == np.int32
    assert sample.logprobs.dtype == np.float32
    assert len(set(sample.ids)) == 6
    owners = ["q5"] * 4 + ["q2"] * 2
    for k, (content_id, owner) in enumerate(zip(sample.ids, owners, strict=True)):
        tokens = sample.tokens[sample.offsets[k] : sample.offsets[k + 1]]
        assert content_id_of(owner, tokens) == content_id
    assert sample.offsets[-1] == len(sample.tokens) == len(sample.logprobs)
    assert set(sample.logprobs.tolist()) == {-0.5}


def test_a_sample_gives_its_trajectories_back(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    pool = open_client()
    known, unknown = trajectory("q0", [1, 2, 3]), trajectory("q0", [4])
    object.__setattr__(unknown, "logprobs", None)
    pool.add([known, unknown])
    found = pool.sample(["q1", "q0"], 2, seed=0, step=0).trajectories()
    assert found["q1"] == ()
    by_length = sorted(found["q0"], key=lambda t: len(t.tokens))
    assert [t.tokens.tolist() for t in by_length] == [[4], [1, 2, 3]]
    assert by_length[0].logprobs is None
    assert by_length[1].logprobs is not None
    assert by_length[1].logprobs.tolist() == [-0.5] * 3
    assert all(t.content_id in (known.content_id, unknown.content_id) for t in found["q0"])
    assert by_length[1].verdict == known.verdict


def test_the_order_and_the_company_of_prompts_change_nothing(filled: PoolClient) -> None:
    whole = drawn(filled.sample(PROMPTS, 2, seed=5, step=7))
    assert drawn(filled.sample(PROMPTS[::-1], 2, seed=5, step=7)) == whole
    for prompt_id in PROMPTS:
        assert drawn(filled.sample([prompt_id], 2, seed=5, step=7))[prompt_id] == whole[prompt_id]
    twice = filled.sample(["q7", "q3", "q7"], 2, seed=5, step=7)
    assert list(twice.ids) == whole["q7"] + whole["q3"] + whole["q7"]
    assert drawn(filled.sample(PROMPTS, 2, seed=5, step=8)) != whole
    assert drawn(filled.sample(PROMPTS, 2, seed=6, step=7)) != whole


def test_neither_history_nor_openers_change_a_draw(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    batch = [trajectory(f"q{i % 6}", [i]) for i in range(60)]
    one = open_client("one")
    one.add(batch)
    other = open_client("other")
    for t in batch[::-1]:
        other.add([t])
        other.sample(["q0"], 2, seed=0, step=0)
    extra = trajectory("q3", [999])
    other.add([extra])
    other.remove("q3", [extra.content_id])
    for step in range(5):
        wanted = drawn(one.sample(PROMPTS[:6], 3, seed=1, step=step))
        assert drawn(other.sample(PROMPTS[:6], 3, seed=1, step=step)) == wanted
        assert drawn(open_client("other").sample(PROMPTS[:6], 3, seed=1, step=step)) == wanted


def test_a_sample_sees_what_others_have_added_and_removed(
    filled: PoolClient, open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    reader = open_client()
    assert reader.sample(["q1"], 2, seed=0, step=0).counts.tolist() == [0]
    new = trajectory("q1", [50, 51])
    filled.add([new])
    assert new.content_id in reader.sample(["q1"], 2, seed=0, step=0).ids
    filled.remove("q1", [new.content_id])
    assert reader.sample(["q1"], 2, seed=0, step=0).counts.tolist() == [0]


def test_a_sealed_pool_that_lost_a_record_says_so_instead_of_drawing_another(
    filled: PoolClient, open_pool: OpenPool
) -> None:
    filled.seal()
    reader = open_pool(read_only=True)
    client = reader._link.client
    (key,) = client.keys(f"rlep:{{{filled.name}/*}}:q:q2")
    client.delete(key)
    with pytest.raises(PoolError, match="2 of its records are gone"):
        reader.sample(["q2"], 2, seed=0, step=0)


@pytest.mark.parametrize("candidates", [3, 24])
def test_every_record_is_drawn_equally_often(
    open_client: OpenClient, trajectory: MakeTrajectory, candidates: int
) -> None:
    """χ² over the ranks of a prompt's records, 2 a draw. Fixed seeds: this passes always or never.

    Two picks of a draw differ, so the statistic has n - 1 degrees of freedom after dividing by 1 - (2 - 1)/(n - 1).
    """
    pool, prompts = open_client(), [f"p{i}" for i in range(100)]
    pool.add([trajectory(prompt_id, [i]) for prompt_id in prompts for i in range(candidates)])
    rank = {content_id: i for prompt_id in prompts for i, content_id in enumerate(pool.content_ids(prompt_id))}
    picks, steps = np.zeros(candidates, np.int64), 100
    for step in range(steps):
        sample = pool.sample(prompts, 2, seed=12, step=step)
        ranks = np.array([rank[content_id] for content_id in sample.ids]).reshape(100, 2)
        assert (ranks[:, 0] != ranks[:, 1]).all()
        picks += np.bincount(ranks.ravel(), minlength=candidates)
    expected = 2 * 100 * steps / candidates
    chi2 = ((picks - expected) ** 2 / expected).sum() / (1 - 1 / (candidates - 1))
    assert chi2 < CHI2_999[candidates]


def test_a_record_that_another_writer_replaced_is_read_as_it_is_now(
    filled: PoolClient, open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    reader = open_client()
    old = reader.sample(["q2"], 2, seed=0, step=0).trajectories()["q2"]
    assert [t.provenance.policy_version for t in old] == [3, 3]
    replaced = trajectory("q2", old[0].tokens.tolist(), policy_version=4)
    filled.remove("q2", [old[0].content_id])
    filled.add([replaced])
    new = reader.sample(["q2"], 2, seed=0, step=0).trajectories()["q2"]
    assert [t.content_id for t in new] == [t.content_id for t in old]
    assert [t.provenance.policy_version for t in new] == [4, 3]
