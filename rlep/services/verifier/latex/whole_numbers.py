"""Families of numbers, as ``k\\pi`` for whole k and ``x\\equiv 3\\pmod 7``: equal where they hold the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.nodes import Node, renamed, unknowns
from rlep.services.verifier.latex.points import MP, Matrix, NoValue, SamplePoint, Scalar, is_real, number, real
from rlep.services.verifier.latex.statements import Answer, Item

_COUNTERS = frozenset("kmnl")
"""Letters that count the members of a family by custom."""
_MOST_MEMBERS = 500
"""Members in one period."""
_CLOSE = MP.mpf("1e-40")


@dataclass(frozen=True)
class Family:
    """The numbers ``first + k period`` for all whole k."""

    first: Scalar
    period: Scalar


def same_family(gold: Answer, target: Answer) -> bool | None:
    """Tell whether both are the same families of numbers; None where one is none."""
    letters = _counter(gold, target), _counter(target, gold)
    if gold.whole and target.whole and gold.counted != target.counted:
        return False
    if gold.counted or target.counted or not (gold.whole or any(item.modulus for item in gold.items)):
        return None  # as a formula in n, whose values have their order
    try:
        one, two = (list(_families(*pair)) for pair in zip((gold, target), letters, strict=True))
    except NoValue:
        return None
    names, relations = zip(*map(_claim, (gold, target)), strict=True)
    if len(names[0]) > 1 or len(names[1]) > 1:
        return None
    if (all(names) and names[0] != names[1]) or relations[0] != relations[1]:
        return False
    return _same_numbers(one, two)


def with_counter_of(gold: Answer, target: Answer) -> Answer:
    """The answer with the counter of the reference in the place of its own."""
    wanted, given = _counter(gold, target), _counter(target, gold)
    if not (gold.whole and wanted and given) or wanted == given:
        return target
    if any(wanted in unknowns(side) for item in target.items for side in item.sides if side is not None):
        return target
    names = {given: wanted}
    items = [replace(item, sides=tuple(side and renamed(side, names) for side in item.sides)) for item in target.items]
    return replace(target, items=tuple(items))


def _counter(answer: Answer, other: Answer) -> str:
    """The letter that counts: the declared one, else the only letter that may; empty where there is none."""
    if len(answer.whole) == 1:
        return next(iter(answer.whole))
    values = [item.value for item in answer.items]
    names = set().union(*map(unknowns, values)) & _COUNTERS
    own = names - set().union(*(unknowns(item.value) for item in other.items)) | names & other.whole
    return next(iter(own)) if len(own) == 1 and not answer.whole else ""


def _claim(answer: Answer) -> tuple[set[str], bool]:
    """The names that are said to have the values, and whether they are said not to have them."""
    lefts = [item.sides[0] for item in answer.items if item.relations]
    return {left.name for left in lefts if left is not None}, any(item.relations == ("!=",) for item in answer.items)


def _families(answer: Answer, counter: str) -> Iterator[Family]:
    """The families of an answer. Raises NoValue where it has anything else."""
    lefts = [item.sides[0] for item in answer.items if item.relations]
    named = all(left is not None and left.kind == "name" and counter not in left.name.split("_")[-1] for left in lefts)
    if answer.form == "tuple" or not (
        named or (not counter and all(left is not None and left.kind == "name" for left in lefts))
    ):
        raise NoValue("no family")
    *before, last = answer.items
    if last.modulus and any(item.modulus for item in before):
        raise NoValue("several congruences, all of which hold")
    for item in answer.items:
        if last.modulus:  # of all that stands before it
            yield _residues(item, last.modulus.strip("(){} "))
        elif item.relations in ((), ("=",), ("!=",)) and counter:
            yield _family(item.value, counter)
        else:
            raise NoValue("no family")


def _residues(item: Item, modulus: str) -> Family:
    if not modulus.isdigit() or int(modulus) == 0 or len(item.sides) > 2 or item.relations not in ((), ("\\equiv",)):
        raise NoValue("a modulus that is no number")
    return Family(_real(item.value, {}), MP.mpf(modulus))


def _family(node: Node, counter: str) -> Family:
    """An expression that is linear in its counter and has no other unknowns."""
    values = {at: _real(node, {counter: Fraction(at)}) for at in (0, 1, 2, -3)}
    period = values[1] - values[0]
    straight = all(_near(value, values[0] + at * period) for at, value in values.items())
    if not straight or period == 0 or unknowns(node) - {counter, "e"}:
        raise NoValue("no family")
    return Family(values[0], period)


def _real(node: Node, bound: dict[str, Scalar]) -> Scalar:
    if unknowns(node) - bound.keys() - {"e"}:
        raise NoValue("another unknown")
    value = evaluate(node, SamplePoint("family", bound=bound))
    if isinstance(value, Matrix) or not is_real(value):
        raise NoValue("no real number")
    return number(real(value))


def _same_numbers(gold: list[Family], target: list[Family]) -> bool | None:
    """Tell whether two unions of families hold the same numbers; None where their periods have no common multiple."""
    unit = abs(gold[0].period)
    ratios = [_ratio(abs(family.period) / unit) for family in (*gold, *target)]
    if None in ratios:
        return False
    known = [ratio for ratio in ratios if ratio is not None]
    common = Fraction(math.lcm(*(r.numerator for r in known)), math.gcd(*(r.denominator for r in known)))
    counts = [int(common / ratio) for ratio in known]
    if sum(counts) > _MOST_MEMBERS:
        return None
    period = unit * common.numerator / common.denominator
    one = [m for family, count in zip(gold, counts, strict=False) for m in _members(family, count, period)]
    two = [
        m for family, count in zip(target, counts[len(gold) :], strict=True) for m in _members(family, count, period)
    ]
    return _all_in(one, two, period) and _all_in(two, one, period)


def _ratio(value: Scalar) -> Fraction | None:
    """A quotient of small whole numbers; None for any other number."""
    for bottom in range(1, 121):
        top = MP.nint(value * bottom)
        if top > 0 and abs(value * bottom - top) < _CLOSE * top:
            return Fraction(int(top), bottom)
    return None


def _members(family: Family, count: int, period: Scalar) -> list[Scalar]:
    """The numbers of a family in one period, from 0 on."""
    return [MP.fmod(MP.fmod(family.first + k * family.period, period) + period, period) for k in range(count)]


def _all_in(some: list[Scalar], others: list[Scalar], period: Scalar) -> bool:
    return all(any(_apart(number, other, period) < _CLOSE * period for other in others) for number in some)


def _apart(one: Scalar, other: Scalar, period: Scalar) -> Scalar:
    distance = abs(one - other)
    return min(distance, abs(period - distance))


def _near(one: Scalar, other: Scalar) -> bool:
    return bool(abs(one - other) <= _CLOSE * max(1, abs(one)))
