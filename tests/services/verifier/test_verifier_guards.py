"""Each guard by an answer that math-verify alone accepts; each addition by one that it alone rejects."""

import random
from fractions import Fraction

import pytest
from math_verify import parse, verify

from rlep.services.verifier import exact
from rlep.services.verifier.grading import judge


def engine_alone(reference: str, answer: str) -> bool:
    gold = parse(f"\\boxed{{{reference}}}", parsing_timeout=None)
    target = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    return bool(verify(gold, target, timeout_seconds=None))


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("42", "43=42"),  # a chain whose sides disagree
        ("42", "n=41=42"),
        ("42", "42\\approx 41"),
        ("\\frac{1}{3}", "0.333333"),  # rationals are exact
        ("\\frac{1}{2^{61}}", "\\frac{1}{2^{60}}"),  # magnitude
        ("\\frac{\\sqrt{2}}{10^{20}}", "\\frac{\\sqrt{3}}{10^{20}}"),
        ("\\begin{pmatrix}\\frac{1}{3}\\\\0\\end{pmatrix}", "\\begin{pmatrix}0.333333\\\\0\\end{pmatrix}"),
        ("50\\%", "50"),  # percent
        ("50", "50\\%"),
        ("5\\text{ cm}", "5\\text{ m}"),  # units
        ("5 cm", "5 m"),
        ("3", "3t"),
        ("42", "42\\text{ or maybe not}"),
        ("1010_2", "1010_3"),  # bases
        ("12", "12_8"),
        ("(2,3)", "\\{2,3\\}"),  # kinds of brackets
        ("\\{2,3\\}", "(2,3)"),
        ("2", "2,2"),  # repetition
        ("2,2", "2"),
        ("2", "2\\text{ and }2"),
        ("\\{1,2\\}", "\\{\\{1\\},\\{2\\}\\}"),  # sets of sets
        ("2^{100}x", "(2^{100}+1)x"),  # digits
        ("\\pi", "\\pi+10^{-20}"),
        ("y", "y'"),  # what the engine passes over
        ("42", "42_{43}"),
        ("1,3,5,\\ldots", "1,3,5"),
        ("42", "\\text{not }x=42"),  # denials
        ("42", "x \\not= 42"),
        ("42", "42\\text{ incorrect}"),
        ("\\sqrt{2}", "\\sqrt{2}\\approx 1.7"),  # approximations
        ("11.01_2", "11.01_3"),
        ("x=1,y=2", "(2,1)"),  # orders
        ("1:2:3", "1:3:2"),
    ],
)
def test_what_the_engine_accepts_and_the_contract_does_not(reference: str, answer: str) -> None:
    assert engine_alone(reference, answer)
    assert judge(reference, answer) in ("wrong", "unparsable")


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("5", "|3+4i|"),
        ("-1", "e^{i\\pi}"),
        ("\\frac{1}{6}", "0.1\\overline{6}"),
        ("[2,3)", "2\\le x<3"),
        ("(-\\infty,2)\\cup(3,\\infty)", "x<2\\text{ or }x>3"),
        ("\\emptyset", "\\varnothing"),
        ("\\sqrt{2}", "√2"),
        ("x^{10}", "x¹⁰"),
        ("1000", "1\\,000"),
        ("2g", "g(2)"),
        ("6.02\\times 10^{23}", "602000000000000000000000"),
        ("\\frac{1}{2}", "\\sin 30^\\circ"),
        ("42", "42=x"),
        ("3.5", "3 1/2"),
        ("10\\sqrt{10}", "10^{1.5}"),
        ("x", "x\\cdot 1"),
        ("\\frac{1\\pm\\sqrt5}{2}", "\\frac{1+\\sqrt5}{2},\\frac{1-\\sqrt5}{2}"),
        ("1+i", "\\sqrt{2}e^{i\\pi/4}"),
        ("2000000", "2\\text{ million}"),
        ("1000x", "1,000x"),
        ("\\frac{1}{3}", "33\\frac{1}{3}\\%"),
        ("\\emptyset", "\\text{no solution}"),
        ("(1,3]", "]1,3]"),
        ("600", "6e2"),
        ("x>2", "\\{x\\mid x>2\\}"),
        ("1.414", "\\sqrt{2}\\approx 1.414"),
    ],
)
def test_what_the_engine_misses_and_the_contract_does_not(reference: str, answer: str) -> None:
    assert not engine_alone(reference, answer)
    assert judge(reference, answer) == "correct"


def spelled(draw: random.Random, value: Fraction) -> str:
    """One of the plain spellings of a number."""
    top, bottom = value.numerator, value.denominator
    spellings = [f"\\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", f"\\dfrac{{{2 * top}}}{{{2 * bottom}}}"]
    if bottom == 1:
        groups = f"{top:,}"
        spellings += [str(top), groups, f"{top}.0", groups.replace(",", "{,}"), groups.replace(",", " ")] * 2
    elif set(str(bottom)) <= {"1", "0"}:
        spellings += [f"{float(value)}"] * 2
    return draw.choice(spellings)


def plain_pair(draw: random.Random) -> tuple[str, str]:
    """Two plain numbers, equal or nearly so half of the time."""
    one = Fraction(draw.randint(-2000, 20000), draw.choice([1, 1, 1, 10, 100, draw.randint(2, 40)]))
    near = [one, one, -one, one + 1, one + Fraction(1, 10), one * 10, Fraction(draw.randint(-99, 99))]
    return spelled(draw, one), spelled(draw, draw.choice(near))


def test_the_fast_path_never_disagrees_with_the_full_path() -> None:
    draw = random.Random(7)
    pairs = [plain_pair(draw) for _ in range(1500)]
    differences = [(*pair, exact.decide(*pair), judge(*pair)) for pair in pairs if exact.decide(*pair) != judge(*pair)]
    assert differences == []
    assert 400 < sum(exact.decide(*pair) == "correct" for pair in pairs) < 1100
