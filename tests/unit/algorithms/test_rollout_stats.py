"""What a step's groups hold, fresh and replayed apart."""

from __future__ import annotations

import pytest

from rlep.algorithms.rollout_stats import SourceStats, rollout_stats
from rlep.core.types import Group
from tests.unit.algorithms.algorithm_values import fresh_of, group_of, prompt_of, trajectory_of


def test_two_groups_by_hand() -> None:
    prompt = prompt_of("a")
    cut = trajectory_of(prompt, 10, status="wrong", finish="length", sample="train/9")
    first = Group(prompt, 7, (*fresh_of(prompt, "+", length=2), cut), (trajectory_of(prompt, 4),))
    second = group_of("b", "++", length=3)
    stats = rollout_stats([first, second], [1.0, -2.0, 0.5, 1.0, 1.0], max_replays=2)
    assert stats.fresh == SourceStats(4, 18, 0.75, 0.25, 0.25, 4.5)
    assert stats.replay == SourceStats(1, 4, 1.0, 0.5, 0.0, 4.0)
    assert stats.fresh_successes == (0, 1, 1)
    assert (stats.groups, stats.groups_short, stats.groups_without_replays) == (2, 2, 1)


def test_no_replays_and_no_signal_are_zeros() -> None:
    stats = rollout_stats([group_of("a", "++")], [1.0, 1.0], max_replays=0)
    assert stats.replay == SourceStats(0, 0, 0.0, 0.0, 0.0, 0.0)
    assert stats.groups_short == 0


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores \(1,\) for 2 trajectories"):
        rollout_stats([group_of("a", "++")], [1.0], max_replays=0)
