"""The cost gate: it only says ``wrong`` where that is certain, and never computes anything large."""

import math

import pytest

from rlep.services.verifier.gate import depth_of, magnitude_of, verdict_of


@pytest.mark.parametrize(
    ("answer", "log10"),
    [("7", math.log10(7)), ("2^{10}", 3.0103), ("10^{10^2}", 100.0), ("2 \\cdot 10^3", 3.30103), ("(2^3)^2", 1.80618)],
)
def test_the_bound_is_the_logarithm_where_nothing_is_lost(answer: str, log10: float) -> None:
    assert magnitude_of(answer) == pytest.approx(log10, abs=1e-5)


@pytest.mark.parametrize("number", [3, 5, 10, 50, 170])
def test_a_factorial_is_bounded_from_below(number: int) -> None:
    bound = magnitude_of(f"{number}!")
    assert bound is not None
    assert bound <= math.log10(math.factorial(number))
    double = magnitude_of(f"{number}!!")
    assert double is not None
    assert double <= math.log10(math.prod(range(number, 0, -2)))


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10^{10^{10}}", "(9!)!", "100000000!", "9**9**9**9", "2^{1001}+1"])
def test_huge_answers_are_wrong_for_a_plain_number(answer: str) -> None:
    assert verdict_of("42", answer) == "wrong"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("42", "2^{10}"),
        ("1", "1^{10^{10^{10}}}"),  # is 1
        ("1", "(10^{10^{10}})^0"),  # is 1
        ("42", "0.5^{10^{10}}"),
        ("42", "10^{-10^{10}}"),
        ("42", "10^{10^{10}}-10^{10^{10}}+42"),
        ("42", "5!!!"),
        ("x^{10}", "9^{9^{9}}"),
        ("10^{10^{10}}", "10^{10^{10}}+1"),
        ("9" * 301, "10^{400}"),
    ],
)
def test_what_is_not_certain_is_left_to_a_worker(reference: str, answer: str) -> None:
    assert verdict_of(reference, answer) is None


def test_answers_beyond_the_contracts_sizes_are_unparsable() -> None:
    assert verdict_of("42", "x" * 4001) == "unparsable"
    assert verdict_of("42", "(" * 41 + "1" + ")" * 41) == "unparsable"
    assert verdict_of("42", "(" * 40 + "x" + ")" * 40) is None
    assert depth_of("((a)[b{c}])") == 3
