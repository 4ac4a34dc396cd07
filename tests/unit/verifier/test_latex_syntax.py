"""The grammar of mathematical notation: what it keeps apart, and what it refuses."""

from fractions import Fraction

import pytest

from rlep.services.verifier.latex.nodes import Node, is_closed, unknowns
from rlep.services.verifier.latex.statements import read
from rlep.services.verifier.latex.syntax import Parser
from rlep.services.verifier.latex.tokens import Unreadable, lex


def parse(latex: str) -> Node:
    return Parser(lex(latex)).whole()


def whole(value: int) -> Node:
    return Node("number", value=Fraction(value))


X, Y = Node("name", (), "x"), Node("name", (), "y")


@pytest.mark.parametrize(
    ("latex", "tree"),
    [
        ("2x", Node("product", (whole(2), X))),
        ("x-y", Node("sum", (X, Node("negative", (Y,))))),
        ("-x^2", Node("negative", (Node("power", (X, whole(2))),))),
        ("x/2y", Node("product", (Node("quotient", (X, whole(2))), Y))),
        ("1\\frac{1}{2}", Node("sum", (whole(1), Node("quotient", (whole(1), whole(2)), "frac")))),
        ("\\frac12", Node("quotient", (whole(1), whole(2)), "frac")),
        ("\\sin 2x", Node("function", (Node("product", (whole(2), X)),), "sin")),
        ("\\sin^{-1}x", Node("function", (X,), "arcsin")),
        ("\\log_2 x", Node("function", (X, whole(2)), "logarithm")),
        ("\\sqrt[3]{x}", Node("root", (X, whole(3)))),
        ("|x|y", Node("product", (Node("absolute", (X,)), Y))),
        ("f(x,y)", Node("apply", (Node("name", (), "f"), X, Y), "(")),
        ("x''", Node("name", (), "x''")),
        ("x_1", Node("name", (), "x_{1}")),
        ("\\mathbf{x}", Node("name", (), "\\mathbf x")),
        ("30^\\circ", Node("degrees", (whole(30),))),
        ("5!!", Node("function", (whole(5),), "double factorial")),
        ("\\frac{dy}{dx}", Node("name", (), "d y / d d x ")),
        ("\\int x\\,dx", Node("integral", (X,), "x")),
        ("\\lim_{x\\to0^+}x", Node("limit", (whole(0), X), "x+")),
    ],
)
def test_notation_is_read_as_it_is_written(latex: str, tree: Node) -> None:
    assert parse(latex) == tree


@pytest.mark.parametrize(
    "latex",
    ["1 2 3", "1,\\ldots", "x+", "(x", "\\frac{1}", "\\unknown", "x^-1", "\\sum n", "(1]", "\\cos^{-1}", "{x"],
)
def test_what_the_grammar_has_no_rule_for_is_refused(latex: str) -> None:
    with pytest.raises(Unreadable):
        parse(latex)


def test_bound_variables_are_no_unknowns() -> None:
    assert unknowns(parse("\\sum_{k=1}^{n}k a")) == {"n", "a"}
    assert is_closed(parse("\\int_0^1 x\\,dx"))
    assert not is_closed(parse("\\int_0^1 xy\\,dx"))


@pytest.mark.parametrize(
    ("latex", "form", "items"),
    [
        ("1, 2", "list", 2),
        ("1\\text{ or }2", "list", 2),
        ("(1, 2)", "tuple", 2),
        ("\\{1, 2, 3\\}", "set", 3),
        ("x=1, x=2", "list", 2),
        ("(1\\ 2)(3\\ 4\\ 5)", "cycles", 2),
        ("0<x<1", "one", 1),
    ],
)
def test_an_answer_is_one_value_or_several(latex: str, form: str, items: int) -> None:
    answer = read(latex)
    assert (answer.form, len(answer.items)) == (form, items)


def test_a_cycle_begins_with_its_least_number() -> None:
    assert read("(2\\ 3\\ 1)") == read("(1\\ 2\\ 3)")
    assert read("(3\\ 4)(1\\ 2)") == read("(1\\ 2)(4\\ 3)")
    assert read("(1\\ 3\\ 2)") != read("(1\\ 2\\ 3)")
