"""The exact path: identical strings and plain numbers by rational arithmetic."""

from fractions import Fraction

import pytest

from rlep.services.verifier.exact import decide, rational_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("+42", 42),
        ("-007", -7),
        ("−7", -7),
        ("1,234,567", 1234567),
        ("1{,}000", 1000),
        ("1\\,000.5", Fraction(2001, 2)),
        ("-12,345", -12345),
        ("2.50", Fraction(5, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("6/8", Fraction(3, 4)),
        ("-1/2", Fraction(-1, 2)),
        ("\\frac{-1}{2}", Fraction(-1, 2)),
        ("-\\dfrac{1}{2}", Fraction(-1, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("\\tfrac{10}{4}", Fraction(5, 2)),
        ("9" * 4000, 10**4000 - 1),
    ],
)
def test_plain_numbers_have_an_exact_value(text: str, value: Fraction | int) -> None:
    assert rational_of(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1,00",
        "1,0000",
        "12,34",
        "1.2.3",
        "1/0",
        "\\frac{1}{0}",
        "1e5",
        "x",
        "½",
        "٤٢",
        "4 2",
        "--1",
        "1/2/3",
        "0x10",
        "9" * 4001,
        "1_000",
        "nan",
        "inf",
        "1\n2",
        "5%",
        "\x00",
        "4\ud8002",
    ],
)
def test_everything_else_is_left_to_the_full_path(text: str) -> None:
    assert rational_of(text) is None


def test_decisions_are_exact() -> None:
    assert decide("62", "62") == "correct"
    assert decide("62", "63") == "wrong"
    assert decide("1/3", "0.333333") == "wrong"
    assert decide("0.75", "\\frac{3}{4}") == "correct"
    assert decide("100000000000000000000", "100000000000000000001") == "wrong"
    assert decide("x+1", "x+1") == "correct"
    assert decide("x+1", "1+x") is None
    assert decide("42", "\\sqrt{2}") is None
    assert decide("\\sqrt{4}", "2") is None
