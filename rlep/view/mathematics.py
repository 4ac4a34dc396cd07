"""Texts with their formulas as MathML.

What a model writes is hostile: a formula is converted by ``latex2mathml``, read again as XML, and made anew from elements and
attributes of a list. A formula that is too long, too deep, or has anything else in it stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from rlep.core.printable import printable

GROWING = ("\\def", "\\newcommand", "\\newenvironment", "\\DeclareMathOperator", "\\sideset")
"""Commands that repeat what they are given: a few nested ones make gigabytes of a line. Anywhere in a formula, it stays text."""
LONGEST, DEEPEST, MOST = 1500, 24, 200
"""Characters of a formula, braces within braces, and formulas of a text that are converted."""
ELEMENTS = frozenset(
    (
        *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msup", "msub", "msubsup"),
        *("munder", "mover", "munderover", "mtable", "mtr", "mtd", "menclose", "mpadded", "mphantom", "mstyle"),
    )
)
ATTRIBUTES = frozenset(
    (
        *("display", "mathvariant", "stretchy", "fence", "separator", "notation", "linethickness", "columnalign"),
        *("width", "accent", "displaystyle", "form"),
    )
)
_VALUE = re.compile(r"[A-Za-z0-9. %-]{1,30}")
_FORMULA = re.compile(
    r"\$\$(?P<a>[^$]{1,1500})\$\$|(?<!\\)\\\[(?P<b>(?:(?!(?<!\\)\\\[)[^$]){1,1500}?)\\\]"
    r"|(?<!\\)\\\((?P<c>(?:(?!(?<!\\)\\\()[^$]){1,1500}?)\\\)"
    r"|(?<![\\$\w])\$(?P<d>[^\s$](?:[^$\n]{0,1500}[^\s$\\])?)\$(?![\d$])"
    r"|(?P<e>\\boxed\{(?:[^{}$\n]|\{[^{}$\n]{0,100}\}){1,200}\})"
)
_NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
CONVERT_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError),
    StopIteration,  # of a command without its argument
)


class Room:
    """Characters of formulas that a page still converts: the slowest of 1,500 take 60 ms."""

    def __init__(self, characters: int = 1 << 16) -> None:
        self.left = characters

    def takes(self, formula: str) -> bool:
        """Tell whether the page converts this one, too, whatever becomes of it."""
        if len(formula) > self.left:
            return False
        self.left -= len(formula)
        return True


def typeset(text: str, room: Room) -> Markup | None:
    """``text`` escaped, its formulas as MathML while the page has room; None where it has none that can be shown so."""
    parts: list[Markup] = []
    end = made = 0
    for found in _FORMULA.finditer(text):
        if made == MOST:
            break
        kind = next(name for name in "abcde" if found[name] is not None)
        formula = mathml(found[kind], block=kind in "ab") if room.takes(found[kind]) else None
        if formula is None:
            continue
        parts += [escape(text[end : found.start()]), formula]
        end, made = found.end(), made + 1
    return Markup("").join([*parts, escape(text[end:])]) if made else None


def mathml(formula: str, *, block: bool = False) -> Markup | None:
    """A formula as MathML of listed elements; None where that cannot be made."""
    if len(formula) > LONGEST or _depth(formula) > DEEPEST or "⟨U+" in formula:
        return None
    if any(command in formula for command in GROWING):
        return None
    try:
        tree = ElementTree.fromstring(_converted(formula, block=block))  # noqa: S314 -- no document type
        return Markup("").join(_elements(tree))
    except (ElementTree.ParseError, *CONVERT_ERRORS):
        return None


def _converted(formula: str, *, block: bool) -> str:
    from latex2mathml import exceptions

    known = tuple(kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception))
    try:
        made = convert(formula, display="block" if block else "inline")
    except known as error:
        raise ValueError(str(error)) from None
    if "<!" in made or "<?" in made:  # no document type, no entities
        raise ValueError("not MathML")
    return made


def _depth(formula: str) -> int:
    deepest = depth = 0
    for character in formula:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return deepest


def _elements(tree: ElementTree.Element) -> Iterator[Markup]:
    name = tree.tag.removeprefix(_NAMESPACE)
    if name not in ELEMENTS:
        raise ValueError(f"{name} is no element of a formula")
    kept = [(key, value) for key, value in tree.items() if key in ATTRIBUTES and _VALUE.fullmatch(value)]
    attributes = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in kept)
    yield Markup("<{}{}>").format(name, attributes) + escape(printable(tree.text or ""))
    for child in tree:
        yield from _elements(child)
        yield escape(printable(child.tail or ""))
    yield Markup("</{}>").format(name)
