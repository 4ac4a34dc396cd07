"""Formulas in texts become MathML of listed elements; whatever else a model writes stays text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from markupsafe import Markup

from rlep.view.mathematics import ATTRIBUTES, ELEMENTS, LONGEST, Room, mathml
from rlep.view.mathematics import typeset as typeset_in
from tests.unit.view.console_scene import ATTACKS


def typeset(text: str) -> Markup | None:
    return typeset_in(text, Room())


def test_formulas_are_typeset_between_text() -> None:
    half = '<math display="inline"><mrow><mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac></mrow></math>'
    assert typeset(r"Half: $\frac{1}{2}$ < \(\frac{1}{2}\).") == f"Half: {half} &lt; {half}."
    block = str(typeset(r"so \[x\] and $$x$$"))
    assert block.count('<math display="block"><mrow><mi>x</mi></mrow></math>') == 2
    box = '<menclose notation="box"><mrow><mn>7</mn></mrow></menclose>'
    assert box in str(typeset(r"$\boxed{7}$"))
    assert box in str(typeset(r"so it is \boxed{7}."))  # models write it outside of a formula, too
    assert "<mfrac>" in str(typeset(r"\boxed{\frac{1}{2}}"))


@pytest.mark.parametrize(
    "text",
    [
        "costs $5",
        "between $5 and $10",
        r"\$x$",
        "a$b$c",
        "",
        "$\\frac{$",
        "$" + "{" * 99 + "$",
        r"$\left$",
        r"\(\left(x\right\)",
        r"$\color$",
        r"$\text$",
        r"$x_\verb$",
    ],
)
def test_what_is_no_formula_stays_text(text: str) -> None:
    assert typeset(text) is None


@pytest.mark.parametrize(
    "inner",
    [
        *ATTACKS, r"\href{javascript:alert(1)}{x}", r"\text{<img src=x onerror=alert(1)>}", r"\style{background:url(//x)}{y}",
        r"\class{a}{b}", r"\color{red;x:url(//y)}{z}", r"\includegraphics{//evil.example/a.png}", r"\unknown{<b>}",
        r"\mathrm{&lt;script&gt;}", r"\begin{matrix}<a href=x>&\end{matrix}", "<!DOCTYPE a [<!ENTITY b 'c'>]>&b;",
    ],
)  # fmt: skip
def test_a_hostile_formula_gives_listed_elements_or_text(inner: str) -> None:
    for text in (f"${inner}$", f"$$x{inner}$$", rf"\[{inner}\]", rf"$x$ {inner}"):
        made = str(typeset(text) or "")
        assert set(re.findall(r"</?([A-Za-z][\w:-]*)", made)) <= ELEMENTS
        tags = " ".join(re.findall("<[^>]*>", made))
        assert set(re.findall(r' ([\w-]+)="', tags)) <= ATTRIBUTES


def test_long_and_deep_formulas_are_not_converted() -> None:
    assert mathml("x" * 1501) is None
    assert mathml("{" * 25 + "x" + "}" * 25) is None
    assert mathml("{" * 24 + "x" + "}" * 24) is not None
    assert str(typeset("$x$ " * 250)).count("<math") == 200


@pytest.mark.parametrize(
    "formula",
    [
        r"\def\A{x}" + "".join(rf"\def\{b}{{{{\{a}}}{{\{a}}}}}" for a, b in pairwise("ABCDEFGHIJKLMNOPQRSTUVWXYZ")) + r"\Z",
        r"\newcommand{\A}[1]{#1#1}" + r"\A{" * 22 + "x" + "}" * 22,
        r"\newenvironment{a}{xx}{xx}" + r"\begin{a}" * 20 + r"\end{a}" * 20,
        r"\DeclareMathOperator{\A}{xx}\A",
        r"\sideset{_a}{^b}" * 80 + "x",
        r"\color\verbx\sidesetx{_a}{^b}y",  # a command within a verbatim text, which may become one
    ],
)  # fmt: skip
def test_a_formula_that_grows_as_it_is_read_stays_text(formula: str) -> None:
    assert len(formula) <= LONGEST
    assert mathml(formula) is None  # at once: they double with each level


def test_a_character_that_a_formula_names_is_as_harmless_as_one_in_it() -> None:
    assert mathml(r"\text{&#x202E;gnorw b}") == '<math display="inline"><mrow><mtext>�gnorw\xa0b</mtext></mrow></math>'


def test_a_line_break_with_a_distance_opens_no_formula() -> None:
    block = str(typeset(r"\[\begin{pmatrix} a \\[4pt] b \end{pmatrix}\]"))
    assert block.startswith("<math")
    assert block.endswith("</math>")
    assert block.count("<mtr>") == 2


@pytest.mark.parametrize(("opening", "end"), [(r"\(", r"\)"), (r"\[", r"\]")])
def test_a_formula_holds_no_opening_of_its_own(opening: str, end: str) -> None:
    """Else each of the openings that a policy repeats is searched for its end over 1,500 characters."""
    last = typeset(f"{opening}x{end}")
    assert typeset(opening * 3 + f"x{end}") == opening * 2 + str(last)
    assert typeset(opening * 20_000) is None


def test_a_page_converts_formulas_until_its_room_is_used_up_and_shows_the_others_as_text() -> None:
    room = Room(characters=5)
    text = str(typeset_in("$abc$ $de$ $f$", room))
    assert text.count("<math") == 2
    assert text.endswith(" $f$")
    assert typeset_in("$g$", room) is None
