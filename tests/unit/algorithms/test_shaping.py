"""Rewards: the verdict, the soft overlong penalty, and the two kept apart."""

from __future__ import annotations

import pytest

from rlep.algorithms.shaping import overlong_penalty, rewards
from rlep.config.training import RewardConfig
from rlep.core.errors import ConfigError
from rlep.core.types import STATUSES
from tests.unit.algorithms.algorithm_values import prompt_of, trajectory_of

PROMPT = prompt_of()


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0.0),
        (2560, 0.0),  # 3072 − 512: the last free length
        (2561, -1 / 512),
        (2816, -0.5),
        (3072, -1.0),
        (4000, -1.0),  # clamped
    ],
)
def test_the_overlong_penalty_of_the_paper(length: int, expected: float) -> None:
    assert overlong_penalty(length, max_length=3072, buffer=512) == expected
    assert overlong_penalty(length, max_length=3072, buffer=512, factor=0.4) == pytest.approx(0.4 * expected)


@pytest.mark.parametrize(("buffer", "factor"), [(0, 1.0), (-1, 1.0), (3073, 1.0), (512, -1.0), (512, float("nan"))])
def test_a_penalty_that_means_nothing_is_refused(buffer: int, factor: float) -> None:
    with pytest.raises(ConfigError, match=r"buffer = |factor = "):
        overlong_penalty(10, max_length=3072, buffer=buffer, factor=factor)


def test_the_verdict_and_the_shaped_score_stay_apart() -> None:
    graded = rewards(
        [
            trajectory_of(PROMPT, 6),
            trajectory_of(PROMPT, 8),  # (10 − 4 − 8) / 4 = −0.5
            trajectory_of(PROMPT, 10, status="wrong", finish="length"),
            trajectory_of(PROMPT, 3, status="timeout"),
        ],
        RewardConfig(overlong_buffer=4),
        10,
    )
    assert graded.accuracy.tolist() == [True, True, False, False]
    assert graded.scores.tolist() == [1.0, 0.5, -2.0, -1.0]
    assert graded.trained.all()


def test_a_score_lies_on_the_line_between_the_rewards_of_wrong_and_correct() -> None:
    graded = rewards(
        [
            trajectory_of(PROMPT, 3, score=1.0),
            trajectory_of(PROMPT, 3, score=0.75),  # correct at a threshold of 0.75: 0.25 · −1 + 0.75 · 2 = 1.25
            trajectory_of(PROMPT, 8, status="wrong", score=0.5),  # 0.5 · −1 + 0.5 · 2 = 0.5, and −0.5 for its length
            trajectory_of(PROMPT, 3, status="wrong", score=0.0),
            trajectory_of(PROMPT, 3),
        ],
        RewardConfig(correct=2.0, otherwise=-1.0, overlong_buffer=4),
        10,
    )
    assert graded.scores.tolist() == [2.0, 1.25, 0.0, -1.0, 2.0]
    assert graded.accuracy.tolist() == [True, True, False, False, True]


@pytest.mark.parametrize(("correct", "wrong"), [(1.0, -1.0), (0.1, -0.3), (1e16, -1.0), (7.1, 0.7)])
def test_the_scores_0_and_1_have_the_rewards_of_wrong_and_correct_to_the_bit(correct: float, wrong: float) -> None:
    rule = RewardConfig(correct=correct, otherwise=wrong, overlong_buffer=0)
    ends = [trajectory_of(PROMPT, score=1.0), trajectory_of(PROMPT, status="wrong", score=0.0)]
    assert rewards(ends, rule, 3072).scores.tolist() == [correct, wrong]


def test_zero_one_rewards_and_no_penalty() -> None:
    rule = RewardConfig(otherwise=0.0, overlong_buffer=0)
    graded = rewards([trajectory_of(PROMPT, 4000), trajectory_of(PROMPT, 1, status="no_answer")], rule, 3072)
    assert graded.scores.tolist() == [1.0, 0.0]


def test_masked_truncated_responses_keep_their_score() -> None:
    rule = RewardConfig(overlong_buffer=4, mask_truncated=True)
    graded = rewards([trajectory_of(PROMPT, 10, status="wrong", finish="length"), trajectory_of(PROMPT, 3)], rule, 10)
    assert graded.trained.tolist() == [False, True]
    assert graded.scores.tolist() == [-2.0, 1.0]


def test_every_status_has_a_reward_and_only_correct_earns() -> None:
    graded = rewards([trajectory_of(PROMPT, status=status) for status in STATUSES], RewardConfig(), 3072)
    earned = dict(zip(STATUSES, graded.scores.tolist(), strict=True))
    assert earned == dict.fromkeys(STATUSES, -1.0) | {"correct": 1.0}


def test_no_trajectories_give_empty_arrays() -> None:
    assert rewards([], RewardConfig(), 3072).scores.shape == (0,)
