"""Sets of real numbers, as intervals, inequalities in one unknown and what joins them: equal where they hold the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from rlep.services.verifier.latex.compute import evaluate, scalar
from rlep.services.verifier.latex.finite import infinity_of
from rlep.services.verifier.latex.nodes import SET_OPERATIONS, Node, has, is_closed, unknowns
from rlep.services.verifier.latex.points import MP, Matrix, NoValue, SamplePoint, Scalar, draw, number
from rlep.services.verifier.latex.statements import INEQUALITIES, Answer, Item, opened, read
from rlep.services.verifier.latex.tokens import Unreadable

_REALS = Node("name", (), "\\mathbb R")
_MEMBER = "\\text{#}"
"""The letter of a set's members in its condition."""
_SAMPLES = 60
_ZERO = MP.mpf("1e-40")


@dataclass(frozen=True)
class Region:
    """A set of real numbers."""

    holds: Callable[[Scalar], bool]
    ends: tuple[Scalar, ...]
    name: str = ""
    """The unknown of an inequality."""
    exact: bool = True
    """``ends`` are all the places where it begins or ends."""


def same_region(gold: Answer, target: Answer) -> bool | None:
    """Tell whether both are the same set of real numbers; None where one is no such set, or both are plain tuples or lists."""
    if not (_is_region(gold) or _is_region(target)):
        return None
    try:
        one, two = region_of(gold), region_of(target)
    except NoValue:
        return None
    if one is None or two is None:
        return None
    if one.name and two.name and one.name != two.name:
        return False
    if not (one.exact or two.exact):
        return None
    try:
        return all(one.holds(at) == two.holds(at) for at in _places(one, two))
    except NoValue:
        return None


def complementary(conditions: list[str]) -> bool:
    """Tell whether of these conditions, in plain LaTeX and about one unknown, exactly one holds for every number."""
    try:
        regions = [region_of(read(condition)) for condition in conditions]
    except (NoValue, Unreadable):
        return False
    known = [region for region in regions if region is not None and region.exact]
    if len(known) < len(regions) or len({region.name for region in known}) > 1:
        return False
    together = _joined(known, any)
    return all(sum(region.holds(at) for region in known) == 1 for at in _places(together, together))


def _is_region(answer: Answer) -> bool:
    return any(
        set(item.relations) & INEQUALITIES
        or (not item.relations and (item.value.kind in SET_OPERATIONS or item.value == _REALS))
        for item in answer.items
    )


def _places(one: Region, two: Region) -> list[Scalar]:
    """The ends of both, places beside and between them, and some more."""
    ends = sorted({*one.ends, *two.ends}, key=number) or [Fraction(0)]
    beside = [number(end) + sign * max(1, abs(number(end))) * MP.mpf("1e-12") for end in ends for sign in (1, -1)]
    between = [(number(left) + number(right)) / 2 for left, right in pairwise(ends)]
    low, high = number(ends[0]) - 7, number(ends[-1]) + 7
    point = SamplePoint("region")
    drawn = [low + (high - low) * number(draw(point, str(index))) / 4 for index in range(_SAMPLES)]
    return [*ends, *beside, *between, low - 1000, high + 1000, *drawn]


def region_of(answer: Answer) -> Region | None:
    """The set of numbers that an answer describes; None where it is no such set."""
    if answer.form == "tuple":
        return _interval(answer) if len(answer.items) == 2 else None
    if answer.form == "set":
        return _finite([item.value for item in answer.items])
    if answer.form == "one":
        return _of_item(answer.items[0])
    parts = [_of_item(item) for item in answer.items]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({part.name for part in known}) > 1:
        return None
    if answer.joint == ",":
        return _listed(answer, known)
    return _joined(known, any if answer.joint == "or" else all)


def _listed(answer: Answer, parts: list[Region]) -> Region | None:
    """Inequalities between commas: all of them where they can hold together, as ``x>0, x\\ne 1``, else one of them."""
    if not all(set(item.relations) <= INEQUALITIES and item.relations for item in answer.items):
        return None
    both = _joined(parts, all)
    if any(map(both.holds, _places(both, both))):
        return both
    pairs = list(zip(answer.items, parts, strict=True))
    apart = [part for item, part in pairs if item.relations == ("!=",)]
    return _joined([_joined([part for item, part in pairs if item.relations != ("!=",)], any), *apart], all)


def _joined(parts: list[Region], join: Callable[[list[bool]], bool]) -> Region:
    ends = tuple(end for part in parts for end in part.ends)
    return Region(
        lambda at: join([part.holds(at) for part in parts]),
        ends,
        next((part.name for part in parts if part.name), ""),
        all(part.exact for part in parts),
    )


def _value(node: Node) -> Scalar:
    if not is_closed(node):
        raise NoValue("an end with unknowns")
    found = evaluate(node, SamplePoint("region"))
    if isinstance(found, MP.mpc | Matrix):
        raise NoValue("an end that is no real number")
    return found if isinstance(found, Fraction) else number(found)


def _interval(answer: Answer) -> Region | None:
    low, high = (item.value for item in answer.items)
    if any(item.relations for item in answer.items):
        return None
    left = None if infinity_of(low, SamplePoint("region")) == -1 else _value(low)
    right = None if infinity_of(high, SamplePoint("region")) == 1 else _value(high)
    with_left, with_right = answer.brackets[0] == "[", answer.brackets[1] == "]"

    def holds(at: Scalar) -> bool:
        above = left is None or _holds(left, "<=" if with_left else "<", at)
        return above and (right is None or _holds(at, "<=" if with_right else "<", right))

    if left is not None and right is not None and number(left) > number(right):
        raise NoValue("an interval that ends before it begins")
    return Region(holds, tuple(end for end in (left, right) if end is not None))


def _finite(nodes: list[Node]) -> Region:
    numbers = [_value(node) for node in nodes]
    return Region(lambda at: any(_holds(at, "=", one) for one in numbers), tuple(numbers))


def _of_node(node: Node) -> Region | None:
    if node.kind in SET_OPERATIONS:
        one, two = _of_node(node.parts[0]), _of_node(node.parts[1])
        if one is None or two is None:
            return None
        if node.kind == "difference":
            return Region(lambda at: one.holds(at) and not two.holds(at), (*one.ends, *two.ends))
        return _joined([one, two], any if node.kind == "union" else all)
    if node.kind == "group":
        return _of_node(node.parts[0])
    if node.kind in ("tuple", "set"):
        return region_of(opened(node))
    if node == _REALS:
        return Region(lambda at: True, ())
    return None


def _of_item(item: Item) -> Region | None:
    if not item.relations:
        return _of_node(item.value)
    sides = [side for side in item.sides if side is not None]
    if len(sides) < len(item.sides) or item.modulus:
        return None
    if item.relations in (("in",), ("not in",)):
        return _membership(item, sides)
    if not set(item.relations) <= {"<", ">", "<=", ">=", "!=", "="}:
        return None
    names = set().union(*map(unknowns, sides)) - {"e"}
    if len(names) != 1 or any(has(side, "apply") for side in sides):
        return None
    (name,) = names
    plain = all(side.kind == "name" or is_closed(side) for side in sides)
    roots = () if plain else tuple(root for left, right in pairwise(sides) for root in _roots(left, right, name))
    ends = tuple(_value(side) for side in sides if is_closed(side) and infinity_of(side, SamplePoint("region")) is None)
    return Region(
        lambda at: _all_hold(sides, item.relations, name, at), (*ends, *roots), "" if name == _MEMBER else name, plain
    )


def _roots(left: Node, right: Node, name: str) -> Iterator[Scalar]:
    """Numbers at which a linear or quadratic factor of either side, or of their difference, is zero."""
    for factor in (*_factors(left), *_factors(right), Node("sum", (left, Node("negative", (right,))))):
        try:
            low, middle, high, more = (
                scalar(factor, SamplePoint("region", bound={name: Fraction(at)})) for at in (0, 1, 2, 3)
            )
        except NoValue:
            continue
        values = low, middle, high, more
        if not all(isinstance(value, Fraction) for value in values):
            low, middle, high, more = map(number, values)
        slope, bend = middle - low, (high - 2 * middle + low) / 2
        if number(abs(more - (low + 3 * slope + 6 * bend))) > _ZERO:
            continue
        slope -= bend
        discriminant = number(slope**2 - 4 * bend * low)
        if number(abs(bend)) > _ZERO and discriminant >= 0:
            yield from ((sign * MP.sqrt(discriminant) - number(slope)) / number(2 * bend) for sign in (1, -1))
        elif number(abs(bend)) <= _ZERO < number(abs(slope)):
            yield -low / slope


def _factors(node: Node) -> Iterator[Node]:
    if node.kind in ("product", "dot", "cross", "quotient", "power", "group", "negative"):
        for part in node.parts[:1] if node.kind == "power" else node.parts:
            yield from _factors(part)
    elif not is_closed(node):
        yield node


def _membership(item: Item, sides: list[Node]) -> Region | None:
    inner = _of_node(sides[1])
    if inner is None or sides[0].kind != "name":
        return None
    if item.relations == ("in",):
        return replace(inner, name=sides[0].name)
    return Region(lambda at: not inner.holds(at), inner.ends, sides[0].name)


def _all_hold(sides: list[Node], relations: tuple[str, ...], name: str, at: Scalar) -> bool:
    point = SamplePoint("region", kind="positive", bound={name: at})
    found: list[Scalar | None] = []
    for side in sides:
        endless = infinity_of(side, point)
        if endless is not None:
            found.append(endless * MP.inf)
            continue
        try:
            found.append(evaluate(side, point))
        except NoValue:
            return False
    return all(
        _holds(left, relation, right) for (left, right), relation in zip(pairwise(found), relations, strict=True)
    )


def _holds(left: Scalar, relation: str, right: Scalar) -> bool:
    if isinstance(left, Fraction) != isinstance(right, Fraction):
        left, right = number(left), number(right)
    if relation in ("=", "!="):
        return (left == right) == (relation == "=")
    if relation in (">", ">="):
        left, right = right, left
    return bool(left < right) or (relation in ("<=", ">=") and bool(left == right))
