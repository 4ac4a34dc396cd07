"""Groups without signal are dropped by their verdicts and refilled within a bound."""

from __future__ import annotations

import pytest

from rlep.algorithms.advantages import pass_at_k_advantages
from rlep.algorithms.dynamic_sampling import Refill, RefillReport, keep_group
from rlep.core.types import Group
from tests.unit.algorithms.algorithm_values import group_of, prompt_of, trajectory_of


@pytest.mark.parametrize(
    ("statuses", "replays", "kept"),
    [
        ("+-", 0, True),
        ("++", 0, False),
        ("--", 0, False),
        ("--", 1, True),  # a correct replay beside wrong answers is signal
        ("++", 2, False),
    ],
)
def test_a_group_is_kept_where_verdicts_differ(statuses: str, replays: int, kept: bool) -> None:
    assert keep_group(group_of("q", statuses, replays)) is kept


@pytest.mark.parametrize(
    ("statuses", "kept"), [("+---", False), ("+----", True), ("-----", False), ("+++++----", True)]
)
def test_with_pass_at_4_a_group_with_fewer_than_four_wrong_answers_has_no_signal(statuses: str, kept: bool) -> None:
    group = group_of("q", statuses)
    assert keep_group(group, 4) is kept
    assert bool(pass_at_k_advantages([s == "+" for s in statuses], [0] * len(statuses), k=4).any()) is kept
    report = RefillReport.of([group], 4)
    assert (report.kept, report.all_correct) == (kept, not kept and "+" in statuses)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0.25, 0.5), True),  # both wrong, but the rewards differ
        ((0.5, 0.5), False),
        ((0.75, 1.0), True),  # both correct at a threshold of 0.75
        ((1.0, None), False),  # None: correct, by a verifier without scores
        ((0.0, 0.0), False),
    ],
)
def test_a_group_is_kept_where_scores_differ(scores: tuple[float | None, ...], kept: bool) -> None:
    prompt = prompt_of("q")
    members = [
        trajectory_of(prompt, status="correct" if score is None or score >= 0.75 else "wrong", score=score)
        for score in scores
    ]
    group = Group(prompt, 7, tuple(members), ())
    assert keep_group(group) is kept
    report = RefillReport.of([group])
    assert (report.kept, report.sampled) == (kept, 1)
    assert report.all_correct == (not kept and members[0].correct)


def test_verdicts_decide_even_where_the_length_penalty_tells_scores_apart() -> None:
    short, long = group_of("q", "+", length=2), group_of("q", "+", length=3000)
    both = type(short)(short.prompt, 7, (*short.fresh, *long.fresh), ())
    assert keep_group(both) is False


def test_the_report_counts_why_groups_were_dropped() -> None:
    first = RefillReport.of([group_of("a", "+-"), group_of("b", "++"), group_of("c", "--"), group_of("d", "--")])
    assert first == RefillReport(rounds=1, kept=1, all_correct=1, all_wrong=2)
    assert first + first == RefillReport(rounds=2, kept=2, all_correct=2, all_wrong=4)
    assert (first + first).sampled == 8


def test_a_step_asks_for_what_is_missing_at_the_share_kept_so_far() -> None:
    plan = Refill(target=8, limit=5, prompts_per_update=4)
    assert plan.ask(RefillReport()) == 8
    assert plan.ask(RefillReport(1, kept=4, all_correct=2, all_wrong=2)) == 8  # 4 missing at 1/2
    assert plan.ask(RefillReport(1, kept=0, all_correct=8, all_wrong=0)) == 32  # at no less than 1/4
    assert plan.ask(RefillReport(2, kept=7, all_correct=31, all_wrong=0)) == 2  # 4 wanted, 2 left
    assert plan.ask(RefillReport(2, kept=9, all_correct=3, all_wrong=0)) == 0


def test_the_bound_ends_the_search_with_whole_updates_and_a_fix() -> None:
    plan = Refill(target=8, limit=2, prompts_per_update=4)
    report = RefillReport(rounds=3, kept=6, all_correct=7, all_wrong=3)
    assert plan.exhausted(report)
    assert plan.ask(report) == 0
    assert plan.usable(report) == 4
    assert plan.describe(report) == (
        "dynamic sampling kept 6 of 16 groups in 3 rounds (7 all correct, 3 all wrong), wanted 8; stopped by"
        " rollout.refill_limit = 2 and trains on 4: raise it, take questions that the model solves sometimes, or lower"
        " rollout.prompts"
    )


def test_a_full_step_uses_its_target_and_no_more() -> None:
    plan = Refill(target=8, limit=2, prompts_per_update=4)
    report = RefillReport(rounds=2, kept=11, all_correct=5, all_wrong=0)
    assert (plan.usable(report), plan.exhausted(report)) == (8, False)
    assert "stopped" not in plan.describe(report)
