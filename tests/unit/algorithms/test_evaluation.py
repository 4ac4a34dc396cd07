"""Evaluation statistics against numbers worked out by hand and by slow enumeration."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from rlep.algorithms.evaluation import Question, estimates, evaluate, ks_for, majority_correct, pass_at_k
from rlep.core.errors import DataError


def question(verdicts: str, answers: str, source: str = "toy", name: str = "q") -> Question:
    """``"+-"`` and one letter per sample; ``.`` is no answer."""
    return Question(
        name, source, np.array([v == "+" for v in verdicts]), tuple(None if a == "." else a for a in answers)
    )


@pytest.mark.parametrize(
    ("verdicts", "answers", "expected"),
    [
        ("++--", "aabc", True),  # a has two votes
        ("+---", "abbc", False),  # b has two
        ("+-", "ab", True),  # one each: the first to appear wins
        ("-+", "ba", False),
        ("-++-", "baab", False),  # two each: b appeared first
        ("----", "....", False),  # nobody answered
        ("+---", "a...", True),  # three silent samples do not outvote one answer
        ("-+", "aa", True),  # the same answer, once cut off: it is correct
    ],
)
def test_majority_vote(verdicts: str, answers: str, expected: bool) -> None:
    one = question(verdicts, answers)
    assert majority_correct(one.correct, one.answers) is expected


def test_pass_at_k_by_hand() -> None:
    # n = 4, c = 1: one of 4 samples is right, so 2 picks hold it with 2/4; c = 2: 1 - C(2,2)/C(4,2) = 5/6
    assert pass_at_k(np.array([0, 1, 2, 3, 4]), 4, 2) == pytest.approx([0.0, 0.5, 5 / 6, 1.0, 1.0], abs=1e-15)


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(samples: int) -> None:
    for k in range(1, samples + 1):
        for successes in range(samples + 1):
            subsets = list(combinations([i < successes for i in range(samples)], k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(np.array([successes]), samples, k)[0] == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_exact_for_many_samples() -> None:
    exact = 1 - comb(2048 - 3, 512) / comb(2048, 512)  # Python integers: no overflow, no rounding
    assert pass_at_k(np.array([3]), 2048, 512)[0] == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(np.array([0, 2048]), 2048, 1024).tolist() == [0.0, 1.0]
    assert pass_at_k(np.array([7]), 10, 1)[0] == pytest.approx(0.7, rel=1e-15)


@pytest.mark.parametrize("k", [0, 5, -1])
def test_pass_at_k_refuses_impossible_k(k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= 4"):
        pass_at_k(np.array([1]), 4, k)


def test_ks_are_powers_of_two_and_n() -> None:
    assert ks_for(1) == (1,)
    assert ks_for(4) == (1, 2, 4)
    assert ks_for(6) == (1, 2, 4, 6)
    assert ks_for(32) == (1, 2, 4, 8, 16, 32)


def test_a_report_by_hand() -> None:
    # per question: avg 1/2, 0, 1, 1/2 -> 1/2; sd(ddof 1) = sqrt(1/2 / 3), stderr = sd / 2
    # maj: a beats b by order; b wrong; a; the first answer is wrong -> 2/4; best: 1, 0, 1, 1 -> 3/4
    # pass@2 = best here (n = 2); one of eight samples has no answer
    questions = [question("+-", "ab"), question("--", "b."), question("++", "aa"), question("-+", "ba")]
    (row,) = evaluate(questions, seed=0).sources
    assert (row.questions, row.samples, row.answered) == (4, 2, 7 / 8)
    assert row.avg.value == 0.5
    assert row.avg.stderr == pytest.approx((0.5 / 3) ** 0.5 / 2)
    assert (row.maj.value, row.best.value) == (0.5, 0.75)
    assert {k: e.value for k, e in row.passes.items()} == {1: 0.5, 2: 0.75}


def test_the_bootstrap_of_two_questions_by_hand() -> None:
    # resamples of {0, 1}: mean 0 with 1/4, 1/2 with 1/2, 1 with 1/4, so 2.5 % and 97.5 % are 0 and 1
    (estimate,) = estimates(np.array([[0.0], [1.0]]), seed=1, address="x")
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)
    assert estimate.stderr == pytest.approx(0.5)  # sd = sqrt(1/2), over sqrt(2)


def test_the_bootstrap_agrees_with_the_normal_interval_on_many_questions() -> None:
    values = np.repeat([0.0, 1.0], [300, 100])[:, None]  # mean 1/4, stderr = sqrt(3/16 · 400/399 / 400) = 0.021678
    (estimate,) = estimates(values, seed=1, address="x")
    assert estimate.stderr == pytest.approx(0.021678, abs=1e-6)
    assert estimate.low == pytest.approx(0.25 - 1.96 * 0.021678, abs=0.004)
    assert estimate.high == pytest.approx(0.25 + 1.96 * 0.021678, abs=0.004)


def test_samples_of_one_question_are_not_independent_evidence() -> None:
    # 2 questions x 100 samples, one always right, one always wrong: 200 independent samples would say ±0.07
    questions = [question("+" * 100, "a" * 100), question("-" * 100, "b" * 100)]
    assert evaluate(questions, seed=0).sources[0].avg.interval == [0.0, 1.0]


def test_intervals_depend_on_the_seed_and_nothing_else() -> None:
    questions = [question("+" * (i % 12) + "-" * (12 - i % 12), "a" * 12, name=str(i)) for i in range(50)]
    first, again, other = (evaluate(questions, seed=seed).to_json() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [row["avg"] for row in first] == [row["avg"] for row in other]


def test_a_data_source_called_all_is_told_from_the_row_over_all() -> None:
    questions = [question("+", "a", source="all"), question("-", "b", source="math")]
    assert [row.data_source for row in evaluate(questions, seed=0).sources] == ["all (data source)", "math", "all"]
    assert [row.data_source for row in evaluate(questions[:1], seed=0).sources] == ["all"]


def test_data_sources_have_their_own_rows_and_one_for_all() -> None:
    questions = [question("++", "aa", "aime"), question("--", "bb", "amc"), question("+-", "ab", "aime")]
    report = evaluate(questions, seed=0)
    assert [(row.data_source, row.questions, row.avg.value) for row in report.sources] == [
        ("aime", 2, 0.75),
        ("amc", 1, 0.0),
        ("all", 3, 0.5),
    ]
    alone = evaluate([q for q in questions if q.data_source == "aime"], seed=0)
    assert alone.sources[0] == report.sources[0]  # a row does not depend on its neighbours


def test_one_question_has_no_interval() -> None:
    (row,) = evaluate([question("+-", "ab")], seed=0).to_json()
    assert (row["avg"], row["ci"], row["stderr"]) == (0.5, None, None)


def test_rows_and_table() -> None:
    report = evaluate([question("++++", "aaaa"), question("----", "bbbb")], seed=0)
    (row,) = report.to_json()
    assert row["pass"] == {"1": 0.5, "2": 0.5, "4": 0.5}
    assert row["ci"] == [0.0, 1.0]
    assert report.table() == [
        {
            "data source": "toy",
            "questions": "2",
            "avg@4": "50.0 [0.0, 100.0]",
            "maj@4": "50.0 [0.0, 100.0]",
            "best@4": "50.0 [0.0, 100.0]",
            "pass@2": "50.0 [0.0, 100.0]",
        }
    ]


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate([], seed=0)
    with pytest.raises(DataError, match="question late: 1 verdicts and 1 answers, but every question needs 2"):
        evaluate([question("+-", "ab"), question("+", "a", name="late")], seed=0)
    with pytest.raises(DataError, match="question odd: 2 verdicts and 1 answers"):
        evaluate([question("+-", "a", name="odd")], seed=0)
    with pytest.raises(DataError, match="0 verdicts"):
        evaluate([question("", "")], seed=0)
