"""Two answers that say the same, and those that only look alike."""

import pytest

from rlep.services.verifier.latex import approximate
from rlep.services.verifier.latex.agree import Unknown
from rlep.services.verifier.latex.letters import may_ask_engine
from rlep.services.verifier.latex.same import same
from rlep.services.verifier.latex.statements import read


def alike(gold: str, target: str) -> bool:
    return same(read(gold), read(target))


@pytest.mark.parametrize(
    ("gold", "target"),
    [
        ("(x+1)^2", "x^2+2x+1"),
        ("\\sin 2x", "2\\sin x\\cos x"),
        ("\\sqrt{x^2}", "|x|"),
        ("x(x+1)", "x^2+x"),
        ("\\sqrt{2}", "1.4142136"),
        ("y=2x+1", "2y=4x+2"),
        ("x=1", "1"),
        ("1,2", "2,1"),
        ("\\{1,2\\}", "\\{2,1,1\\}"),
        ("x=\\pm 2", "x=2,x=-2"),
        ("x=1,y=2", "(1,2)"),
        ("(x,y)=(1,2)", "x=1,y=2"),
        ("[0,1)", "0\\le x<1"),
        ("(0,2)\\cup(1,3)", "(0,3)"),
        ("(-\\infty,0)\\cup(0,\\infty)", "x\\ne 0"),
        ("x>2", "2<x"),
        ("2x\\ge 4", "x\\ge 2"),
        ("(AB)^T", "B^TA^T"),
        ("\\lim_{x\\to0}\\frac{1}{x^2}", "\\infty"),
        ("\\sum_{n=1}^{\\infty}\\frac{1}{n^2}", "\\frac{\\pi^2}{6}"),
        ("(1\\ 2\\ 3)", "(2\\ 3\\ 1)"),
        ("\\mathbf{v}", "v"),
    ],
)
def test_answers_of_one_value_are_the_same(gold: str, target: str) -> None:
    assert alike(gold, target)
    assert alike(target, gold)


@pytest.mark.parametrize(
    ("gold", "target"),
    [
        ("x^2", "X^2"),
        ("x", "x'"),
        ("f(g(x))", "g(f(x))"),
        ("A^TA", "A^2"),
        ("\\sqrt{x^2}", "x"),  # they differ at x = -1
        ("\\frac{1}{3}", "0.333"),
        ("y=2x+1", "y=2x"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "\\{1,2\\}"),
        ("[0,1)", "[0,1]"),
        ("(0,1)", "0\\le x<1"),
        ("x>2", "x\\ge 2"),
        ("x>2", "-x>-2"),
        ("1", "1,1"),
        ("(1\\ 2\\ 3)", "(1\\ 3\\ 2)"),
        ("\\infty", "-\\infty"),
    ],
)
def test_answers_of_different_values_are_not(gold: str, target: str) -> None:
    assert not alike(gold, target)
    assert not alike(target, gold)


def test_every_side_of_a_chain_counts() -> None:
    assert alike("42", "x=6\\cdot 7=42")
    assert not alike("42", "41=42")
    assert not alike("2", "x=\\frac{1}{0}=2")


def test_a_letter_before_a_sum_is_a_factor_and_f_is_a_function() -> None:
    assert alike("k(x+1)", "kx+k")
    assert not alike("f(x+1)", "fx+f")


def test_what_cannot_be_computed_is_left_to_the_engine() -> None:
    one, two = read("\\int\\cos x\\,dx"), read("\\sin x")
    with pytest.raises(Unknown):
        same(one, two)
    assert may_ask_engine(read("A\\cup B"), read("B\\cup A"))
    assert not may_ask_engine(read("f(x)"), read("f(x)"))


def test_sides_of_an_approximation_lie_within_one_per_cent() -> None:
    assert approximate.holds([read("\\pi"), read("3.14")])
    assert not approximate.holds([read("\\pi"), read("3.2")])
    assert approximate.is_rational(read("\\frac{22}{7}"))
    assert not approximate.is_rational(read("\\pi"))
