"""Equations and approximations: every side has a finite value, and all values agree. In worker processes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import sympy
from latex2sympy2_extended.logic import And

from rlep.services.verifier.arithmetic import exact_value, has_unknowns, is_finite, number_of, refuted

_INFINITE = (sympy.oo, -sympy.oo)


def consistent(expression: Any) -> bool:
    """Whether the sides of each chain of ``=`` are finite and agree; ``43 = 42``, ``n = 41 = 42``, ``1/0 = 42`` do not.

    A chain that ends in an infinity is consistent where every side without unknowns is that infinity.
    """
    if isinstance(expression, (sympy.FiniteSet, sympy.Tuple)):
        return all(map(consistent, expression.args))
    return all(map(_holds, _chains(expression)))


def _chains(expression: Any) -> Iterator[list[Any]]:
    """The sides of every run of ``=`` in a chain of relations: ``[a, b, c]`` of ``a = b = c``."""
    sides: list[Any] = []
    for link in expression._unsorted_args if isinstance(expression, And) else (expression,):
        if isinstance(link, sympy.Eq):
            sides = [*(sides or [link.lhs]), link.rhs]
        elif sides:
            yield sides
            sides = []
    if sides:
        yield sides


def _holds(sides: Sequence[Any]) -> bool:
    sides = [side.doit().doit() if side.has(sympy.MatrixExpr) else side for side in sides]  # a power takes two rounds
    if any(side.has(sympy.zoo, sympy.nan) for side in sides):
        return False
    known = [side for side in sides if not has_unknowns(side)]
    if isinstance(sides[-1], sympy.MatrixExpr):
        known = [side for side in known if not side.has(sympy.I)]  # ``2I``: here I is the identity
    if sides[-1] in _INFINITE:
        return all(side.doit() == sides[-1] for side in known)
    if not all(is_finite(side) for side in sides if _is_scalar(side)):
        return False
    return all(_shape(left) == _shape(right) and agree(left, right) for left, right in pairwise(known))


def approximate(values: Sequence[Any]) -> bool:
    """Whether the sides of ``≈`` without unknowns are finite and lie within 1 % of the first of them."""
    if not all(map(consistent, values)):
        return False
    known = [side for side in map(last_side, values) if _is_scalar(side) and not has_unknowns(side)]
    numbers = [number for side in known if (number := number_of(side, digits=15)) is not None]
    return len(numbers) == len(known) and all(abs(n - numbers[0]) <= 0.01 * abs(numbers[0]) for n in numbers)


def agree(gold: Any, target: Any) -> bool:
    """Whether no pair of the scalars that two equal objects are made of is certainly different."""
    return not any(refuted(left, right) for left, right in _parts(gold, target))


def right_side(expression: Any, other: Any) -> Any:
    """The value of ``x = value`` where the other side is no equation; the engine compares that."""
    if isinstance(expression, And):
        expression = expression._unsorted_args[-1]
    return expression if isinstance(other, (sympy.Eq, And)) else last_side(expression)


def last_side(expression: Any) -> Any:
    """What a chain of ``=`` comes down to."""
    if isinstance(expression, And):
        expression = expression._unsorted_args[-1]
    return expression.rhs if isinstance(expression, sympy.Eq) else expression


def _parts(gold: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of scalar expressions two equal objects are made of, where their order says which belong together."""
    if isinstance(gold, sympy.MatrixBase) and isinstance(target, sympy.MatrixBase):
        if gold.shape == target.shape:
            yield from zip(gold.flat(), target.flat(), strict=True)
    elif isinstance(gold, sympy.Interval) and isinstance(target, sympy.Interval):
        yield from ((gold.start, target.start), (gold.end, target.end))
    elif isinstance(gold, sympy.Tuple) and isinstance(target, sympy.Tuple) and len(gold) == len(target):
        for left, right in zip(gold, target, strict=True):
            yield from _parts(left, right)
    elif isinstance(gold, sympy.FiniteSet) and isinstance(target, sympy.FiniteSet):
        yield from _matched(list(gold.args), list(target.args))
    elif isinstance(gold, sympy.Eq) and isinstance(target, sympy.Eq) and gold.lhs == target.lhs:
        yield gold.rhs, target.rhs
    elif isinstance(gold, sympy.Expr) and isinstance(target, sympy.Expr):
        yield gold, target


def _matched(gold: list[Any], target: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Elements of two sets in order of their exact values; nothing unless all of them are rational."""
    left, right = [exact_value(item) for item in gold], [exact_value(item) for item in target]
    if len(left) == len(right) and None not in left and None not in right:
        yield from zip(sorted(left), sorted(right), strict=True)  # type: ignore[type-var]


def _is_scalar(expression: Any) -> bool:
    return _shape(expression) == ()


def _shape(expression: Any) -> tuple[Any, ...] | None:
    """Rows and columns of a matrix, ``()`` of a number, None of anything else."""
    if isinstance(expression, (sympy.MatrixBase, sympy.MatrixExpr)):
        return tuple(expression.shape)
    return () if isinstance(expression, sympy.Expr) else None
