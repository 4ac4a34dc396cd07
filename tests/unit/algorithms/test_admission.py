"""Which collected answers enter the pool, and the report of what it covers."""

from __future__ import annotations

import itertools

import pytest

from rlep.algorithms.admission import Admission, Coverage, admit
from rlep.core.types import Trajectory
from tests.unit.algorithms.algorithm_values import prompt_of, trajectory_of

PROMPT, OTHER, SILENT = prompt_of("a"), prompt_of("b"), prompt_of("c")
IDS = [PROMPT.id, OTHER.id, SILENT.id]


def answers(first_tokens: str) -> list[Trajectory]:
    """Correct answers to ``a``, one for each letter; equal letters have equal tokens."""
    return [trajectory_of(PROMPT, [ord(letter), 1]) for letter in first_tokens]


def test_only_correct_complete_short_and_distinct_answers_enter() -> None:
    good = answers("xy")
    bad = [
        *answers("x"),
        trajectory_of(PROMPT, [7], status="wrong"),
        trajectory_of(PROMPT, [8], status="timeout"),
        trajectory_of(PROMPT, [9], finish="length"),
        trajectory_of(PROMPT, 11),
        trajectory_of(OTHER, [5]),
    ]
    accepted, coverage = admit(IDS, [*bad, *good], Admission(max_length=10))
    assert {t.content_id for t in accepted} == {t.content_id for t in good}
    assert coverage == Coverage(
        answers={2: 1, 0: 2},
        refused={"duplicate": 1, "not_correct": 2, "truncated": 1, "too_long": 1, "too_few": 1},
        accepted=2,
    )
    assert (coverage.questions, coverage.covered) == (3, 1)


def test_a_question_with_one_answer_is_left_out_unless_one_is_enough() -> None:
    assert admit([PROMPT.id], answers("x"), Admission())[0] == ()
    assert len(admit([PROMPT.id], answers("x"), Admission(min_per_question=1))[0]) == 1


def test_what_the_pool_already_has_counts_towards_minimum_and_cap() -> None:
    old, new = answers("x")[0], answers("xyz")
    known = {PROMPT.id: [old.content_id]}
    accepted, coverage = admit([PROMPT.id], new, Admission(), known=known)
    assert {t.content_id for t in accepted} == {t.content_id for t in answers("yz")}
    assert coverage.answers == {3: 1}
    assert coverage.refused["duplicate"] == 1
    capped, coverage = admit([PROMPT.id], new, Admission(max_per_question=2), known=known)
    assert len(capped) == 1
    assert (coverage.answers, coverage.refused["over_cap"]) == ({2: 1}, 1)


def test_the_cap_keeps_the_same_answers_in_any_order_of_arrival() -> None:
    kept = {
        frozenset(t.content_id for t in admit([PROMPT.id], order, Admission(max_per_question=2))[0])
        for order in itertools.permutations(answers("wxyz"))
    }
    assert len(kept) == 1


def test_failed_answers_enter_only_by_option_and_never_unverified_ones() -> None:
    failed = [trajectory_of(PROMPT, [n], status="wrong") for n in (1, 2)]
    unverified = [trajectory_of(PROMPT, [n], status="crashed") for n in (3, 4)]
    accepted, _ = admit([PROMPT.id], failed + unverified, Admission(failed=True))
    assert {t.verdict.status for t in accepted} == {"wrong"}
    assert len(accepted) == 2


def test_reports_of_disjoint_questions_add_up_and_fall_into_buckets() -> None:
    one = Coverage({0: 1, 1: 2, 3: 1}, {"duplicate": 2}, 5)
    two = Coverage({3: 1, 4: 1, 7: 1, 8: 1, 64: 3}, {"duplicate": 1, "too_long": 4}, 9)
    assert (one + two).buckets() == {"0": 1, "1": 2, "2-3": 2, "4-7": 2, "8+": 4}
    assert (one + two).refused == {"duplicate": 3, "too_long": 4}
    assert (one + two).accepted == 14
    assert sum((one, two), Coverage()) == one + two


def test_an_answer_to_another_question_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=f"an answer to prompt {OTHER.id}, which is not among the questions asked"):
        admit([PROMPT.id], [trajectory_of(OTHER)], Admission())
