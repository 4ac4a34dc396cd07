"""Advantages over mixed groups: the anchor values, a slow reference, and properties."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.advantages import (
    group_advantages,
    leave_one_out_advantages,
    pass_at_k_advantages,
    whitened,
    zero_variance,
)
from rlep.core.errors import ConfigError
from tests.golden.reference_update import advantages as reference
from tests.unit.algorithms.algorithm_values import PROPERTY

REWARDS = st.sampled_from([-2.0, -1.5, -1.0, 0.0, 0.3, 0.7, 1.0]) | st.floats(-1e3, 1e3)
BATCHES = st.lists(st.tuples(REWARDS, st.integers(-3, 3)), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("successes", "right", "wrong"),
    [
        # 16 wrong + 2 right: mean −7/9, sample std sqrt(16·(2/9)² + 2·(16/9)²)/sqrt(17) = 0.646762
        (0, 2.748737, -0.343592),
        (1, 2.173, -0.435),
        (8, 0.869, -1.087),
        (15, 0.236, -4.007),
    ],
)
def test_the_anchor_values_of_16_fresh_and_2_correct_replays(successes: int, right: float, wrong: float) -> None:
    rewards = [1.0] * successes + [-1.0] * (16 - successes) + [1.0, 1.0]
    result = group_advantages(rewards, [5] * 18, eps=0.0)
    tolerance = 1e-6 if successes == 0 else 5e-4
    assert result[-1] == pytest.approx(right, abs=tolerance)
    assert result[15] == pytest.approx(wrong, abs=tolerance)
    if successes:
        assert result[0] == result[-1]


def test_a_group_solved_by_all_gets_exactly_zero() -> None:
    assert group_advantages([1.0] * 18, [0] * 18).tolist() == [0.0] * 18


def test_two_groups_interleaved_by_hand() -> None:
    # group 4: (1, −1) → mean 0, std sqrt(2); group 1: (3, 0, 0) → mean 1, std sqrt(3)
    result = group_advantages([1, 3, -1, 0, 0], [4, 1, 4, 1, 1], eps=0.0)
    assert result == pytest.approx([2**-0.5, 2 / 3**0.5, -(2**-0.5), -1 / 3**0.5, -1 / 3**0.5])
    assert group_advantages([1, 3, -1, 0, 0], [4, 1, 4, 1, 1], scale=False).tolist() == [1, 2, -1, -1, -1]
    population = group_advantages([1, -1], [0, 0], ddof=0, eps=0.0)
    assert population.tolist() == [1, -1]


def test_eps_is_added_to_the_deviation() -> None:
    assert group_advantages([1, -1], [0, 0], ddof=0, eps=1.0).tolist() == [0.5, -0.5]


def test_leave_one_out_by_hand() -> None:
    # 3 − (0 + 0)/2, 0 − (3 + 0)/2; a group of one has no others
    assert leave_one_out_advantages([3, 0, 0, 9], [1, 1, 1, 2]).tolist() == [3.0, -1.5, -1.5, 0.0]


def test_pass_at_k_by_hand() -> None:
    # N = 4, N₋ = 3, k = 2: R = 1 − 3/6 = 1/2, σ = 1/2; correct (1/2)/(1/2), wrong (1/2 − 2/3)/(1/2)
    result = pass_at_k_advantages([False, True, False, False], [7] * 4, k=2)
    assert result.tolist() == pytest.approx([-1 / 3, 1, -1 / 3, -1 / 3], abs=1e-15)
    plain = pass_at_k_advantages([False, True, False, False], [7] * 4, k=2, scale=False)
    assert plain.tolist() == pytest.approx([-1 / 6, 1 / 2, -1 / 6, -1 / 6], abs=1e-15)
    # Every pair of a group with one wrong response has a correct one: nothing is left to learn.
    assert pass_at_k_advantages([True, True, False], [1] * 3, k=2).tolist() == [0.0] * 3
    assert pass_at_k_advantages([False] * 4 + [True] * 3, [0] * 4 + [1] * 3, k=2).tolist() == [0.0] * 7
    assert pass_at_k_advantages([], [], k=2).tolist() == []


@PROPERTY
@given(st.lists(st.booleans(), min_size=2, max_size=8), st.integers(1, 8))
def test_pass_at_k_is_the_mean_over_all_subsets(correct: list[bool], k: int) -> None:
    subsets = list(combinations(range(len(correct)), k))
    scores = [float(any(correct[i] for i in subset)) for subset in subsets]
    if not scores or len(set(scores)) == 1:
        assert not pass_at_k_advantages(correct, [2] * len(correct), k=k).any()
        return
    scaled = (np.array(scores) - np.mean(scores)) / np.std(scores)
    expected = [
        np.mean([value for subset, value in zip(subsets, scaled, strict=True) if i in subset])
        for i in range(len(correct))
    ]
    result = pass_at_k_advantages(correct, [2] * len(correct), k=k)
    assert result == pytest.approx(expected, abs=1e-9)
    assert result.sum() == pytest.approx(0, abs=1e-9)
    if k == 1:
        assert result == pytest.approx(group_advantages(correct, [2] * len(correct), ddof=0, eps=0.0), abs=1e-9)


def test_groups_without_signal_are_marked() -> None:
    assert zero_variance([0.7, 0.7, 1, -1, 5], [1, 1, 2, 2, 3]).tolist() == [True, True, False, False, True]


@PROPERTY
@given(BATCHES, st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-6, 0.1]), st.booleans())
def test_the_slow_reference_agrees(batch: list[tuple[float, int]], ddof: int, eps: float, scale: bool) -> None:
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    # Where two rewards of a group differ by rounding alone, the quotient of two roundings says nothing.
    rewards = [round(reward, 3) for reward in rewards]
    expected = reference(rewards, groups, ddof, eps, scale)
    result = group_advantages(rewards, groups, ddof=ddof, eps=eps, scale=scale)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-9)


@PROPERTY
@given(BATCHES, st.randoms(use_true_random=False))
def test_the_order_of_the_batch_and_the_names_of_groups_do_not_matter(
    batch: list[tuple[float, int]], random: object
) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rewards, groups = np.array([r for r, _ in batch]), np.array([g for _, g in batch])
    straight = group_advantages(rewards, groups)
    np.testing.assert_allclose(group_advantages(rewards[order], 100 - groups[order]), straight[order], atol=1e-9)


@PROPERTY
@given(st.floats(-1e6, 1e6), st.integers(1, 64), st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-6]))
def test_constant_groups_are_exactly_zero(reward: float, size: int, ddof: int, eps: float) -> None:
    assert not group_advantages([reward] * size, [3] * size, ddof=ddof, eps=eps).any()
    assert not leave_one_out_advantages([reward] * size, [3] * size).any()


@pytest.mark.parametrize(("name", "baseline"), [("REINFORCE++", False), ("REINFORCE++-baseline", True)])
def test_whitened_advantages_are_those_of_verl(name: str, baseline: bool) -> None:
    verl = json.loads((Path(__file__).parents[2] / "golden" / "verl_values.json").read_text())
    rewards = group_advantages(verl["rewards"], verl["groups"], scale=False) if baseline else verl["rewards"]
    assert whitened(rewards, verl["lengths"]) == pytest.approx(verl[name], rel=1e-7)


def test_whitening_counts_tokens_and_leaves_out_untrained_sequences() -> None:
    # Tokens 1, 1, 1, −3: mean 0, variance 12 / 3 = 4. The third sequence has no trained token.
    assert whitened([1, -3, 50], [3, 1, 0]) == pytest.approx([0.5, -1.5, 25])
    assert whitened([0.7, 0.7, 9], [3, 1, 0]).tolist() == [0, 0, 0]
    assert whitened([], []).shape == (0,)


@PROPERTY
@given(BATCHES)
def test_advantages_of_a_group_sum_to_zero(batch: list[tuple[float, int]]) -> None:
    rewards, groups = np.array([r for r, _ in batch]), np.array([g for _, g in batch])
    result = group_advantages(rewards, groups)
    for group in set(groups.tolist()):
        assert abs(result[groups == group].sum()) < 1e-6 * max(1.0, np.abs(rewards).max())


def test_differences_too_small_to_square_do_not_divide_by_zero() -> None:
    result = group_advantages([0.0, 1e-200], [0, 0], ddof=0, eps=0.0)
    assert result == pytest.approx([-1, 1])


def test_no_rewards_give_no_advantages() -> None:
    assert group_advantages([], []).shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_named(bad: float) -> None:
    with pytest.raises(ValueError, match=rf"rewards\[1\] = {bad}: every reward must be finite"):
        group_advantages([1.0, bad], [0, 0])


@pytest.mark.parametrize(
    ("rewards", "groups", "options", "message"),
    [
        ([1, 2], [0], {}, r"rewards of shape \(2,\) and groups of shape \(1,\)"),
        ([[1, 2]], [[0, 0]], {}, r"both must be \[S\]"),
        ([1, 2], [0.5, 1.5], {}, "groups of dtype float64: must be integers"),
        ([1, 2], [0, 0], {"ddof": 2}, "ddof = 2: must be 0 or 1"),
        ([1, 2], [0, 0], {"eps": -1.0}, r"eps = -1\.0: must be finite and not negative"),
    ],
)
def test_bad_input_names_the_value(
    rewards: list[float], groups: list[float], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, groups, **options)  # type: ignore[arg-type]
    assert issubclass(ConfigError, ValueError)
