"""Columnar batches, and their division over ranks and micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.packing import Budget, pack, sequence_batch, take
from rlep.core.types import Group
from tests.unit.algorithms.algorithm_values import PROPERTY, batch_of, group_of, prompt_of, trajectory_of


def test_whole_groups_laid_end_to_end() -> None:
    groups = [group_of("a", "+-", replays=1, length=2), group_of("b", "-", length=1)]
    batch = sequence_batch(groups, [1.0, -2.0, 0.5, 0.0], trained=[True, True, False, True])
    assert batch.tokens.tolist() == [900, 901, 0, 1, 900, 901, 0, 1, 900, 901, 100, 0, 900, 901, 0]
    assert batch.offsets.tolist() == [0, 4, 8, 12, 15]
    assert batch.prompt_lengths.tolist() == [2, 2, 2, 2]
    assert batch.sampled_lengths.tolist() == [2, 2, 2, 1]
    assert batch.groups.tolist() == [0, 0, 0, 1]
    assert batch.replayed.tolist() == [False, False, True, False]
    assert batch.advantages.tolist() == [1.0, -2.0, 0.5, 0.0]
    assert batch.trained.tolist() == [True, True, False, True]
    assert batch.behaviour_logprobs is not None
    assert batch.behaviour_logprobs.tolist() == [-0.5] * 7
    assert batch.old_logprobs is None


def test_unknown_behaviour_logprobs_are_nan_and_none_where_all_are() -> None:
    prompt = prompt_of()
    known, unknown = trajectory_of(prompt, 2), trajectory_of(prompt, 1, logprob=None)
    mixed = sequence_batch([Group(prompt, 7, (known, unknown), ())], [0.0, 0.0])
    assert mixed.behaviour_logprobs is not None
    assert np.isnan(mixed.behaviour_logprobs).tolist() == [False, False, True]
    assert sequence_batch([Group(prompt, 7, (unknown,), ())], [0.0]).behaviour_logprobs is None


def test_an_empty_batch_has_no_sequences() -> None:
    batch = sequence_batch([], [])
    assert (len(batch), batch.offsets.tolist(), batch.tokens.shape) == (0, [0], (0,))


@pytest.mark.parametrize(
    ("advantages", "trained", "message"),
    [
        ([1.0], None, r"advantages of shape \(1,\) for 1 groups of 2 sequences"),
        ([1.0, 2.0], [True], r"trained of shape \(1,\) for 1 groups of 2 sequences"),
        ([1.0, float("nan")], None, r"advantages\[1\] = nan: every advantage must be finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(advantages: list[float], trained: list[bool] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence_batch([group_of("a", "+-")], advantages, trained=trained)


def test_taking_sequences_cuts_every_array_alike() -> None:
    batch = batch_of(
        [2, 1, 3],
        prompt_length=2,
        advantages=[1.0, 2.0, 3.0],
        groups=[0, 0, 1],
        replayed=[False, True, False],
        trained=[True, True, False],
        old=np.arange(6.0),
        behaviour=np.arange(6.0) * 10,
    )
    part = take(batch, [2, 0])
    assert part.tokens.tolist() == [7, 8, 9, 10, 11, 0, 1, 2, 3]
    assert part.offsets.tolist() == [0, 5, 9]
    assert part.sampled_lengths.tolist() == [3, 2]
    assert part.advantages.tolist() == [3.0, 1.0]
    assert part.groups.tolist() == [1, 0]
    assert part.trained.tolist() == [False, True]
    assert part.old_logprobs is not None
    assert part.behaviour_logprobs is not None
    assert part.old_logprobs.tolist() == [3, 4, 5, 0, 1]
    assert part.behaviour_logprobs.tolist() == [30, 40, 50, 0, 10]
    assert len(take(batch, [])) == 0
    assert take(batch, [1]).replayed.tolist() == [True]


@PROPERTY
@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.integers(1, 5),
    st.integers(5, 80),
)
def test_no_sequence_is_lost_and_ranks_stay_in_step(lengths: list[int], ranks: int, budget: int) -> None:
    batch = batch_of(lengths)
    assignment = pack(batch, ranks, Budget(tokens=budget))
    assert len(assignment) == ranks
    assert len({len(micro_batches) for micro_batches in assignment}) == 1
    assert len(assignment[0]) >= 1
    flat = np.concatenate([micro for rank in assignment for micro in rank])
    assert sorted(flat.tolist()) == list(range(len(lengths)))
    sizes = np.diff(batch.offsets)
    for micro in (micro for rank in assignment for micro in rank):
        assert sizes[micro].sum() <= budget or len(micro) == 1
    again = pack(batch, ranks, Budget(tokens=budget))
    assert all((a == b).all() for x, y in zip(assignment, again, strict=True) for a, b in zip(x, y, strict=True))


def test_only_the_chosen_sequences_are_packed() -> None:
    # of 8 sequences of 5 tokens three are chosen: 10 tokens to a micro-batch, so that one of 2 ranks has one of them
    chosen = np.isin(np.arange(8), [1, 4, 6])
    assignment = pack(batch_of([4] * 8), 2, Budget(tokens=10), chosen)
    assert sorted(np.concatenate([micro for rank in assignment for micro in rank]).tolist()) == [1, 4, 6]
    assert sorted(len(micro) for rank in assignment for micro in rank) == [1, 2]
    assert [[micro.tolist() for micro in rank] for rank in pack(batch_of([4]), 2, Budget(10), chosen[:1])] == [
        [[]],
        [[]],
    ]


def test_the_number_of_micro_batches_by_hand() -> None:
    # 8 sequences of 5 tokens, 10 to a micro-batch: 4 micro-batches, 2 on each of 2 ranks
    assert [[len(micro) for micro in rank] for rank in pack(batch_of([4] * 8), 2, Budget(tokens=10))] == [[2, 2]] * 2
    # on 3 ranks: 6 micro-batches, and no rank runs empty while another holds two
    sizes = [len(micro) for rank in pack(batch_of([4] * 8), 3, Budget(tokens=10)) for micro in rank]
    assert sorted(sizes) == [1, 1, 1, 1, 2, 2]


def test_too_few_sequences_leave_empty_micro_batches() -> None:
    assert [[micro.tolist() for micro in rank] for rank in pack(batch_of([3]), 3, Budget(tokens=8))] == [
        [[0]],
        [[]],
        [[]],
    ]
    assert [[micro.tolist() for micro in rank] for rank in pack(batch_of([]), 2, Budget(tokens=8))] == [[[]], [[]]]


def test_work_is_balanced_by_a_cost_that_knows_attention() -> None:
    # Attention as dear as everything else at 10 tokens: 40 tokens cost 40 + 160 = 200, 10 tokens cost 20.
    budget = Budget(tokens=80, attention_length=10)
    assert budget.cost(np.array([40, 10])).tolist() == [200.0, 20.0]
    batch = batch_of([39, 39, 9, 9, 9, 9])
    loads = [sum(int(np.diff(batch.offsets)[micro].sum()) for micro in rank) for rank in pack(batch, 2, budget)]
    assert loads == [60, 60]


def test_ranks_share_a_large_update_evenly() -> None:
    generator = np.random.default_rng(0)
    batch = batch_of(np.minimum(generator.lognormal(6.5, 0.8, 1152).astype(int) + 1, 3072).tolist(), prompt_length=100)
    budget = Budget(tokens=16_384)
    costs = budget.cost(np.diff(batch.offsets))
    assignment = pack(batch, 8, budget)
    loads = np.array([sum(costs[micro].sum() for micro in rank) for rank in assignment])
    assert loads.max() / loads.mean() < 1.01
    # Ranks wait for each other at every micro-batch: the sum of the slowest is what the update takes.
    rows = np.array([[costs[micro].sum() for micro in rank] for rank in assignment])
    assert rows.max(axis=0).sum() / loads.mean() < 1.02
