"""The values of expressions."""

from fractions import Fraction
from math import pi

import pytest

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.points import Infinite, Matrix, NoValue, OutOfDomain, SamplePoint, Value
from rlep.services.verifier.latex.syntax import Parser
from rlep.services.verifier.latex.tokens import lex

TWO = SamplePoint("two", bound={"x": Fraction(2)})
LINEAR = SamplePoint("matrices", matrices=frozenset("AB"))


def value_of(latex: str, point: SamplePoint = TWO) -> Value:
    return evaluate(Parser(lex(latex)).whole(), point)


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("1-\\frac{1}{3}", Fraction(2, 3)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("0.25x", Fraction(1, 2)),
        ("50\\%", Fraction(1, 2)),
        ("2^{-3}", Fraction(1, 8)),
        ("-x^2", Fraction(-4)),
        ("\\sqrt{\\frac{9}{4}}", Fraction(3, 2)),
        ("\\binom{5}{2}", Fraction(10)),
        ("{}_5C_2", Fraction(10)),
        ("7!!", Fraction(105)),  # 7 · 5 · 3
        ("17\\bmod 5", Fraction(2)),
        ("\\gcd(12,18)", Fraction(6)),
        ("\\lfloor -\\frac{1}{2}\\rfloor", Fraction(-1)),
        ("\\lceil\\sqrt{2}\\rceil", Fraction(2)),
        ("\\max(1,3,2)", Fraction(3)),
        ("|\\{1,2,2\\}|", Fraction(2)),
        ("\\sum_{k=1}^{100}k", Fraction(5050)),
        ("\\prod_{k=1}^{4}k", Fraction(24)),
        ("\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", Fraction(-2)),
        ("(1,2,3)\\cdot(4,5,6)", Fraction(32)),
        ("\\|(3,4)\\|", Fraction(5)),
        ("\\sin 0", Fraction(0)),
    ],
)
def test_rational_values_are_exact(latex: str, value: Fraction) -> None:
    found = value_of(latex)
    assert isinstance(found, Fraction)
    assert found == value


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("180^\\circ", pi),
        ("4\\arctan 1", pi),
        ("\\log_2 8", 3),
        ("\\sqrt[3]{-27}", -3),
        ("\\int_0^1 3t^2\\,dt", 1),
        ("\\sum_{n=0}^{\\infty}\\frac{1}{2^n}", 2),
        ("\\sum_{n=1}^{\\infty}\\frac{1}{n^2}", pi**2 / 6),
        ("\\lim_{t\\to0}\\frac{\\sin t}{t}", 1),
        ("\\lim_{t\\to0^-}\\frac{|t|}{t}", -1),
        ("\\lim_{t\\to\\infty}\\frac{2t+1}{t}", 2),
    ],
)
def test_other_values_are_close(latex: str, value: float) -> None:
    assert complex(value_of(latex)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("latex", "error"),
    [
        ("\\frac{1}{0}", NoValue),
        ("0^0", NoValue),
        ("\\ln 0", NoValue),
        ("\\tan 90^\\circ", NoValue),
        ("\\csc 0", NoValue),
        ("\\sin(1,2)", NoValue),
        ("\\sum_{n=1}^{\\infty}\\frac{1}{n}", NoValue),  # the harmonic series
        ("\\sum_{n=1}^{\\infty}\\frac{\\ln n}{n^2}", NoValue),  # no extrapolation finds it
        ("\\sum_{n=1}^{1.5}n", NoValue),
        ("\\lim_{t\\to0}\\frac{|t|}{t}", NoValue),  # its sides are -1 and 1
        ("\\lim_{t\\to0}\\frac{1}{t^2}", Infinite),
        ("\\begin{pmatrix}1&2\\\\2&4\\end{pmatrix}^{-1}", NoValue),  # singular
        ("(1,2)+(1,2,3)", NoValue),
    ],
)
def test_what_has_no_finite_value_raises(latex: str, error: type[NoValue]) -> None:
    with pytest.raises(error):
        value_of(latex)


def test_a_derivative_is_that_at_the_point() -> None:
    at = SamplePoint("somewhere")
    assert complex(value_of("\\frac{d}{dx}x^3", at)) == pytest.approx(complex(value_of("3x^2", at)), abs=1e-12)
    assert value_of("\\frac{d}{dx}f(x)", at) != value_of("\\frac{d}{dx}g(x)", at)


def test_a_root_of_a_negative_number_is_complex_or_out_of_the_domain() -> None:
    assert complex(value_of("\\sqrt{-4}")) == pytest.approx(2j)
    with pytest.raises(OutOfDomain):
        value_of("\\sqrt{-4}", SamplePoint("real", kind="both"))


def test_functions_without_a_value_are_drawn_from_their_arguments() -> None:
    assert value_of("f(x)") == value_of("f(1+1)")
    assert value_of("f(x)") != value_of("f(3)")
    assert value_of("f(g(x))") != value_of("g(f(x))")
    assert value_of("f(x+1)") != value_of("fx+f")


def test_matrices_do_not_commute() -> None:
    assert value_of("AB", LINEAR) != value_of("BA", LINEAR)
    assert value_of("(AB)^T", LINEAR) == value_of("B^TA^T", LINEAR)
    assert value_of("A^TA", LINEAR) != value_of("A^2", LINEAR)
    assert value_of("A^2", LINEAR) == value_of("AA", LINEAR)


def test_a_vector_product_is_at_right_angles() -> None:
    assert value_of("(1,0,0)\\times(0,1,0)") == Matrix(((Fraction(0),), (Fraction(0),), (Fraction(1),)))
