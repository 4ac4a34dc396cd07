"""The points at which two expressions are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.nodes import Node, is_closed, unknowns
from rlep.services.verifier.latex.points import MP, NoValue, SamplePoint, is_real, number, real

_BOTH_SIGNS = 20
_POSITIVE = 6
_COMPLEX = 5
_LARGE = 25
"""Names are so many times as large at some points."""
_MOST_MARKS = 8
_MOST_WHOLE = 130
_HUGE = tuple(10**power + 7 for power in (3, 5, 6, 7, 9))


def real_points(point: SamplePoint) -> Iterator[SamplePoint]:
    """Points of both signs, among them whole and large ones, then positive ones."""
    for index in range(_BOTH_SIGNS):
        scale = _LARGE if index % 4 == 1 else 1
        yield replace(point, seed=f"{index}", kind="both", whole=index % 4 == 0, scale=scale, rough=[])
    for index in range(_POSITIVE):
        yield replace(point, seed=f"{index}", kind="positive", rough=[])


def complex_points(point: SamplePoint) -> Iterator[SamplePoint]:
    """Positive points with complex results, for expressions that have no real values."""
    for index in range(_COMPLEX):
        yield replace(point, seed=f"{index}", kind="complex", rough=[])


def special_points(gold: Node, target: Node, point: SamplePoint) -> Iterator[SamplePoint]:
    """Points at, between and beyond the numbers at which an absolute value, a rounding or a remainder may change."""
    if not any(map(_has_pieces, (gold, target))):
        return
    marks = _marks(gold, target)
    names = sorted((unknowns(gold) | unknowns(target)) - {"e", "i"} - point.complexes - point.matrices - point.vectors)
    for name in names:
        whole = name in point.integers
        for value in _whole_places(marks, alone=len(names) == 1) if whole else _places(marks):
            yield replace(point, seed="special", kind="both", bound={name: value}, rough=[])


def _has_pieces(node: Node) -> bool:
    own = node.kind in ("absolute", "modulo", "root") or node.name in ("max", "min", "floor", "ceiling", "gcd", "lcm")
    return own or any(map(_has_pieces, node.parts))


def _marks(*nodes: Node) -> list[Fraction]:
    """The values of the largest parts without unknowns, to a few digits."""
    found: set[Fraction] = set()
    for node in nodes:
        for part in _closed_parts(node):
            try:
                value = evaluate(part, SamplePoint("marks"))
            except NoValue:
                continue
            if isinstance(value, Fraction):
                found.add(abs(value))
            elif (
                not hasattr(value, "rows")
                and is_real(value)
                and MP.mpf("1e-30") < abs(number(real(value))) < MP.mpf("1e30")
            ):
                found.add(abs(Fraction(float(real(value)))))
    return sorted(found - {0})[-_MOST_MARKS:]


def _closed_parts(node: Node) -> Iterator[Node]:
    if is_closed(node) and not unknowns(node) & {"i"}:
        yield node
        return
    for part in node.parts:
        yield from _closed_parts(part)


def _places(marks: list[Fraction]) -> Iterator[Fraction]:
    for mark in (*marks, *(Fraction(float(mark) ** 0.5) for mark in marks if mark < 10**30)):
        for place in (mark, mark / 2, 2 * mark, mark + Fraction(1, 7), mark * Fraction(11, 10)):
            yield from (place, -place)
    yield from (sign * (huge + Fraction(1, 3)) for huge in _HUGE for sign in (1, -1))


def _whole_places(marks: list[Fraction], *, alone: bool) -> Iterator[Fraction]:
    yield from map(Fraction, range(_MOST_WHOLE if alone else 12))
    for mark in marks:
        if mark.denominator == 1:
            yield from (mark * times for times in (1, 2, 3))
    yield from map(Fraction, _HUGE)
