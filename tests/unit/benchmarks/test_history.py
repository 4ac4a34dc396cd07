"""The check of a run's history, which ``benchmarks/chaos.py`` relies on: a right one passes, each wrong one is named."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from benchmarks.parts.history import faults_of, first_difference

Steps = dict[int, list[dict[str, Any]]]


def row(step: int, member: int, content: str, *, replayed: bool = False, correct: bool = True) -> dict[str, Any]:
    """A trajectory of the one group of a step."""
    return {
        "group": 0,
        "member": member,
        "prompt_id": "p",
        "content_id": content,
        "replayed": replayed,
        "status": "correct" if correct else "wrong",
        "reward": 1.0 if correct else -1.0,
        "advantage": 0.5,
        "tokens": 3,
        "policy_version": 0 if replayed else step,
        "oldest_version": 0 if replayed else step,
    }


RIGHT: Steps = {
    0: [row(0, 0, "a"), row(0, 1, "b", correct=False)],
    1: [row(1, 0, "a"), row(1, 1, "c", correct=False), row(1, 2, "a", replayed=True)],
}


def checked(steps: Steps) -> list[str]:
    """Of a run of one question, two fresh responses and at most one replay."""
    return faults_of(steps, prompts=1, fresh=2, most_replays=1)


def test_a_right_history_has_no_fault() -> None:
    assert checked(RIGHT) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda steps: steps.pop(0), "step 0: no rollout file"),
        (lambda steps: steps[0].pop(), "1 fresh responses, not 2"),
        (lambda steps: steps[1].append(row(1, 3, "c")), "3 fresh responses, not 2"),
        (lambda steps: steps[1].append(row(1, 3, "a", replayed=True)), "replays ['a'] twice"),
        (lambda steps: steps[1][2].update(content_id="b"), "replays ['b'], never seen correct before"),
        (lambda steps: steps[0].append(row(0, 2, "a", replayed=True)), "replays ['a'], never seen correct before"),
        (lambda steps: steps[1][0].update(policy_version=0), "fresh responses of versions [0]"),
        (lambda steps: steps[1][0].update(oldest_version=0), "fresh responses of versions [0]"),
        (lambda steps: steps[0][1].update(reward=1.0), "member 1: wrong, reward 1.0"),
        (lambda steps: steps[0][0].update(status="crashed"), "member 0: crashed, reward 1.0"),
        (lambda steps: steps[1][2].update(status="wrong", reward=-1.0), "member 2: wrong, reward -1.0"),
        (lambda steps: steps[1][1].update(prompt_id="q"), "more than one question"),
        (lambda steps: steps[1][1].update(member=0), "members [0, 0, 2]"),
        (lambda steps: steps[1][1].update(group=1), "2 groups, not 1"),
    ],
)
def test_a_wrong_history_is_named(wrong: Callable[[Steps], object], said: str) -> None:
    steps = deepcopy(RIGHT)
    wrong(steps)
    assert any(said in line for line in checked(steps)), checked(steps)


def test_the_first_difference_of_two_runs_is_a_step_and_a_column() -> None:
    other = deepcopy(RIGHT)
    assert first_difference(RIGHT, other) is None
    other[1][0]["tokens"] = 4
    assert first_difference(RIGHT, other) == (1, "tokens")
    assert first_difference({0: RIGHT[0]}, other) is None
