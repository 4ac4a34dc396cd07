"""The functions that have a name of their own, on scalars."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rlep.services.verifier.latex.operations import add
from rlep.services.verifier.latex.points import (
    MP,
    NoValue,
    OutOfDomain,
    SamplePoint,
    Scalar,
    is_real,
    number,
    real,
    tiny,
)

_MAX_FACTORIAL = 3000
"""Factorials of greater numbers have 60 digits."""

Function = Callable[[list[Scalar], SamplePoint], Scalar]
"""Operations on values; the point decides between real and complex results."""


def _only(values: list[Any]) -> Any:
    """The one operand of a function."""
    if len(values) != 1:
        raise NoValue("a function of several numbers")
    return values[0]


def _analytic(name: str) -> Function:
    """A function of mpmath."""
    function = getattr(MP, name)

    def compute(values: list[Scalar], point: SamplePoint) -> Scalar:
        value = _only(values)
        if name in ("sin", "tan", "sinh", "tanh", "asin", "atan", "asinh", "atanh") and value == 0:
            return Fraction(0)
        found = real(function(number(value)))
        if point.kind != "complex" and not is_real(found) and is_real(value):
            raise OutOfDomain(f"{name} of a number it does not take")
        vanishes = name in ("sin", "cos") and abs(found) < tiny()  # at a multiple of π/2, but for rounding
        return Fraction(0) if vanishes else found

    return compute


def _reciprocal(function: Function) -> Function:
    def compute(values: list[Scalar], point: SamplePoint) -> Scalar:
        value = function(values, point)
        if abs(number(value)) < tiny():
            raise NoValue("a division by zero")
        return 1 / number(value)

    return compute


def _tangent(values: list[Scalar], point: SamplePoint) -> Scalar:
    cosine = _analytic("cos")(values, point)
    if abs(number(cosine)) < tiny():
        raise NoValue("the tangent of a right angle")
    sine = _analytic("sin")(values, point)
    return number(sine) / number(cosine)


def _logarithm(values: list[Scalar], point: SamplePoint) -> Scalar:
    value = real(number(values[0]))
    if value == 0:
        raise NoValue("the logarithm of zero")
    if point.kind != "complex" and is_real(value) and value < 0:
        raise OutOfDomain("the logarithm of a negative number")
    found = MP.log(value)
    return found if len(values) == 1 else found / MP.log(number(values[1]))


def whole(values: list[Scalar]) -> list[int]:
    """Values that must be whole numbers."""
    if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
        raise NoValue("whole numbers are needed")
    return [int(value) for value in values]


def _factorial(values: list[Scalar], point: SamplePoint) -> Scalar:
    value = _only(values)
    if isinstance(value, Fraction) and value.denominator == 1:
        if value < 0:
            raise NoValue("the factorial of a negative number")
        if value <= _MAX_FACTORIAL:
            return Fraction(math.factorial(int(value)))
    return MP.factorial(number(value))


def _double_factorial(values: list[Scalar], point: SamplePoint) -> Scalar:
    value = _only(whole(values))
    if not 0 <= value <= _MAX_FACTORIAL:
        raise NoValue("a double factorial")
    return Fraction(math.prod(range(value, 0, -2)))


def _rounded(values: list[Scalar], *, up: bool) -> Scalar:
    value = _only(values)
    value = real(value)
    if not is_real(value):
        raise NoValue("a complex number is not rounded")
    if isinstance(value, Fraction):
        return Fraction(math.ceil(value) if up else math.floor(value))
    return Fraction(int(MP.ceil(value) if up else MP.floor(value)))


def _largest(values: list[Scalar], sign: int) -> Scalar:
    if len(values) < 2 or not all(is_real(value) for value in values):
        raise NoValue("the largest of one")
    return max(values, key=lambda value: sign * number(real(value)))


FUNCTION_RULES: dict[str, Function] = {
    **{name: _analytic(name) for name in ("sin", "cos", "sinh", "cosh", "tanh", "exp", "arg")},
    **{f"arc{name}": _analytic(f"a{name}") for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{f"ar{name}": _analytic(f"a{name}") for name in ("sinh", "cosh", "tanh", "coth", "sech", "csch")},
    "tan": _tangent,
    "cot": _reciprocal(_analytic("tan")),
    "sec": _reciprocal(_analytic("cos")),
    "csc": _reciprocal(_analytic("sin")),
    "coth": _reciprocal(_analytic("tanh")),
    "sech": _reciprocal(_analytic("cosh")),
    "csch": _reciprocal(_analytic("sinh")),
    "ln": lambda values, point: _logarithm([_only(values)], point),
    "log": lambda values, point: _logarithm([_only(values)], point),
    "logarithm": _logarithm,
    "factorial": _factorial,
    "double factorial": _double_factorial,
    "Gamma": lambda values, point: _factorial([add(_only(values), Fraction(-1))], point),
    "floor": lambda values, point: _rounded(values, up=False),
    "ceiling": lambda values, point: _rounded(values, up=True),
    "gcd": lambda values, point: Fraction(math.gcd(*whole(values))),
    "lcm": lambda values, point: Fraction(math.lcm(*whole(values))),
    "max": lambda values, point: _largest(values, 1),
    "min": lambda values, point: _largest(values, -1),
    "cis": lambda values, point: MP.expj(number(_only(values))),
    "Re": lambda values, point: MP.re(number(_only(values))),
    "Im": lambda values, point: MP.im(number(_only(values))),
}
"""Name -> rule; ``det`` is none of them, as it takes a matrix."""
