"""Two expressions, compared where their names have values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.decimals import rounds
from rlep.services.verifier.latex.finite import has_value
from rlep.services.verifier.latex.letters import Names, readings
from rlep.services.verifier.latex.nodes import Node, all_of, unknowns
from rlep.services.verifier.latex.places import complex_points, real_points, special_points
from rlep.services.verifier.latex.points import MP, Matrix, NoValue, SamplePoint, Scalar, Value, number

_ROUGH = MP.mpf("1e-11")
"""The greatest relative difference of equal values of which one was computed to fewer digits, as an integral is."""
_DECIMAL = MP.mpf("1e-6")
"""The greatest relative difference of a decimal and an irrational number that it stands for."""
_LAST_DIGITS = 20
"""Units of its last place by which a decimal may be off."""
_SMALL = MP.mpf("1e-30")
"""Rough values below this are computed again, as they may be zero."""
_MANY_DIGITS = 400
_MORE_DIGITS = 1200
_GAMMA_DIGITS = 150
_MOST_DIGITS = 8200
"""Digits to which values without names are computed: 60 lose ``e^{-200}`` in ``1-e^{-200}``."""
_LOST, _MANY_LOST = 20, 200
"""Digits that terms which cancel may take, the second of ``_MANY_DIGITS`` and more: ``1-\\frac{1}{1+e^x}`` is small."""
_ENOUGH = 3
"""Points at which both expressions must have a value."""

Equal = Callable[[Value, Value], bool]
"""A comparison of two values."""


class Unknown(Exception):
    """Neither equal nor different can be shown by values."""


def equal_values(gold: Node, target: Node) -> bool:
    """Tell whether two expressions have equal values in some reading of their letters. Raises Unknown."""
    return any(_agree(one, two, names, _close(one, two)) for one, two, names in readings(gold, target))


def proportional(gold: Node, target: Node, *, positive: bool) -> bool:
    """Tell whether one is the other times a number that is not zero, or times a ``positive`` one. Raises Unknown."""
    for one, two, names in readings(gold, target):
        ratios = _Ratios(positive)
        if _agree(one, two, replace(names, closed=False), ratios.add) and ratios.seen:
            return True
    return False


def differ_by_constant(gold: Node, target: Node) -> bool:
    """Tell whether the values of two expressions differ by one number at every point. Raises Unknown."""
    for one, two, names in readings(gold, target):
        differences: list[Scalar] = []

        def constant(left: Value, right: Value, seen: list[Scalar] = differences) -> bool:
            (one_value,), (other,) = _cells(left), _cells(right)
            seen.append(number(one_value) - number(other))
            size = max(1, abs(number(one_value)), abs(number(other)))
            return bool(abs(seen[-1] - seen[0]) <= MP.mpf("1e-40") * size)

        if _agree(one, two, replace(names, closed=False), constant, everywhere=True):
            return True
    return False


def _agree(gold: Node, target: Node, names: Names, equal: Equal, *, everywhere: bool = False) -> bool:
    """Tell whether two expressions are equal at every point where both have a value; three such points are needed.

    ``everywhere``: the answer needs a real value wherever the reference has one, as ``\\ln x`` has not where ``\\ln|x|`` has.
    """
    if names.closed:
        point = replace(names.point, kind="complex")
        found = _compared(gold, target, point, equal)
        if found is None:
            raise Unknown
        slow = any(node.name == "Gamma" for side in (gold, target) for node in all_of(side, "function"))
        return found and _confirmed(gold, target, point, equal, _GAMMA_DIGITS if slow else _MOST_DIGITS)
    seen, one_sided = [], 0
    for point in real_points(names.point):
        found = _compared(gold, target, point, equal)
        if found is False:
            return False
        seen += [point] if found and not point.whole else []
        one_sided += found is None and has_value(gold, point) and not has_value(target, point)
    if any(_compared(gold, target, point, equal) is False for point in special_points(gold, target, names.point)):
        return False
    if one_sided >= _ENOUGH and (everywhere or len(seen) < _ENOUGH):
        return False  # the answer has no real value where the reference has one
    if len(seen) < _ENOUGH:
        tried = [(point, _compared(gold, target, point, equal)) for point in complex_points(names.point)]
        if any(found is False for _, found in tried):
            return False
        seen = [point for point, found in tried if found]
    if len(seen) < _ENOUGH:
        raise Unknown
    slow = any(map(_has_gamma, (gold, target)))
    return _confirmed(gold, target, seen[-1], equal, _GAMMA_DIGITS if slow else _MORE_DIGITS)


def _confirmed(gold: Node, target: Node, point: SamplePoint, equal: Equal, digits: int) -> bool:
    """Tell whether values that are equal to 60 digits are equal to so many. Raises Unknown where so many cannot be computed."""
    if point.rough:
        return True  # fewer digits than 60 are known
    try:
        return _equal_to(digits, gold, target, point, equal)
    except NoValue:
        raise Unknown from None


def _compared(gold: Node, target: Node, point: SamplePoint, equal: Equal) -> bool | None:
    """Tell whether they are equal at a point; None where one of them has no value there."""
    try:
        left, right = evaluate(gold, point), evaluate(target, point)
        if equal(left, right):
            return True
        if point.rough and not _below(_SMALL, left, right):
            return _roughly(left, right)
        return _equal_to(
            _MANY_DIGITS, gold, target, point, equal
        )  # large terms that cancel, and zeros, take more digits
    except NoValue:
        return None


def _equal_to(digits: int, gold: Node, target: Node, point: SamplePoint, equal: Equal) -> bool:
    """Tell whether values are equal to so many digits, or both zero but for rounding, which falls with each digit."""
    with _digits(digits):
        few = evaluate(gold, point), evaluate(target, point)
        if equal(*few):
            return True
        if _shape(few[0]) != _shape(few[1]):
            return False  # no zero is a matrix of zeros
        if not _below(MP.mpf(10) ** (100 - digits), *few):
            return False
    with _digits(digits + 200):
        more = evaluate(gold, point), evaluate(target, point)
        pairs = [
            pair for one, two in zip(few, more, strict=True) for pair in zip(_cells(one), _cells(two), strict=True)
        ]
        return all(abs(number(two)) <= abs(number(one)) * MP.mpf("1e-100") for one, two in pairs)


def _has_gamma(node: Node) -> bool:
    """Tell whether an expression has factorials of names, which take seconds to a thousand digits."""
    own = node.kind == "binomial" or node.name in ("factorial", "Gamma")
    return (own and bool(unknowns(node))) or any(map(_has_gamma, node.parts))


def _below(limit: Scalar, *values: Value) -> bool:
    return all(abs(number(cell)) < limit for value in values for cell in _cells(value))


class _Ratios:
    """The ratios of the values of two expressions, which must be one number."""

    def __init__(self, positive: bool) -> None:
        self._positive = positive
        self.seen: list[Scalar] = []
        self._close = _same_to()

    def add(self, left: Value, right: Value) -> bool:
        """Tell whether two more values have the ratio of those before."""
        ones, twos = _cells(left), _cells(right)
        return len(ones) == len(twos) and all(map(self._add, ones, twos))

    def _add(self, left: Scalar, right: Scalar) -> bool:
        if left == 0 or right == 0:
            return bool(left == right)
        ratio = number(left) / number(right)
        if self._positive and (isinstance(ratio, MP.mpc) or ratio <= 0):
            return False
        if self.seen and abs(ratio - self.seen[0]) > self._close * abs(ratio):
            return False
        self._close = self._close if self.seen else _same_to()  # no closer than the first is known
        self.seen.append(ratio)
        return True


def _roughly(left: Value, right: Value) -> bool:
    """Tell whether two values are equal as far as a value of fewer digits can show."""
    ones, twos = list(map(number, _cells(left))), list(map(number, _cells(right)))
    return len(ones) == len(twos) and all(
        abs(one - two) <= _ROUGH * max(abs(one), abs(two), MP.mpf("1e-3")) for one, two in zip(ones, twos, strict=True)
    )


def _close(gold: Node, target: Node) -> Equal:
    """The comparison of their values, which allows for decimals as the contract says."""
    mixed = _has_decimals(gold) != _has_decimals(target)
    limit = (
        None if (unknowns(gold) | unknowns(target)) - {"e"} else 1
    )  # of names only the relative difference says something
    allowed = min(_DECIMAL, _last_digits(gold), _last_digits(target)) if mixed else None

    def close(left: Value, right: Value) -> bool:
        return _shape(left) == _shape(right) and all(
            _same_number(one, two, gold, target, allowed=allowed, limit=limit)
            for one, two in zip(_cells(left), _cells(right), strict=True)
        )

    return close


def _same_number(
    left: Scalar, right: Scalar, gold: Node, target: Node, *, allowed: Scalar | None, limit: int | None
) -> bool:
    """Tell whether two numbers are equal; ``allowed``: the difference from a decimal, relative to a size of at most ``limit``."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right or _rounds(left, target, right) or _rounds(right, gold, left)
    one, two = number(left), number(right)
    difference, size = abs(one - two), max(abs(one), abs(two))
    if difference <= _same_to() * size:
        return True
    return allowed is not None and bool(difference <= allowed * (size if limit is None else min(limit, size)))


def _has_decimals(node: Node) -> bool:
    return (node.kind == "number" and "." in node.name) or any(map(_has_decimals, node.parts))


def _last_digits(node: Node) -> Scalar:
    """The difference that the last digits of a decimal allow; 1 for anything else."""
    node = _unsigned(node)
    places = len(node.name.partition(".")[2]) if node.kind == "number" else 0
    return _LAST_DIGITS * MP.mpf(10) ** -places if places else MP.mpf(1)


def _unsigned(node: Node) -> Node:
    while node.kind in ("negative", "group"):
        node = node.parts[0]
    return node


def _rounds(exact: Fraction, node: Node, value: Fraction) -> bool:
    """Tell whether a decimal is the rounded value of a fraction whose own decimals never end."""
    node = _unsigned(node)
    return node.kind == "number" and exact * value > 0 and rounds(exact, node.name, value)


def _shape(value: Value) -> tuple[int, int] | None:
    """The shape of a matrix; None for a scalar."""
    return value.shape if isinstance(value, Matrix) else None


def _cells(value: Value) -> list[Scalar]:
    return [cell for row in value.rows for cell in row] if isinstance(value, Matrix) else [value]


def _same_to() -> Scalar:
    """The greatest relative difference of two equal values at the present digits."""
    return MP.mpf(10) ** ((_LOST if MP.dps < _MANY_DIGITS else _MANY_LOST) - MP.dps)


@contextmanager
def _digits(count: int) -> Iterator[None]:
    """Compute to so many digits inside of the block."""
    before = MP.dps
    MP.dps = count
    try:
        yield
    finally:
        MP.dps = before
