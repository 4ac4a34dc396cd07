"""Exact and numeric values of symbolic expressions, in worker processes only; single numbers alone are formatted."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

_LIMITS = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
_MAX_BITS = 40_000
"""Larger exact powers are left to numerics."""
_DIGITS = 40
_RELATIVE = sympy.Float("1e-36")
"""How far two computed values of one number may be apart, relative to it, at that many digits."""
_RELATIVE_LIMIT = sympy.Float("1e-12")
"""The same for sums and integrals, which are computed to fewer digits."""
_RELATIVE_DECIMAL = sympy.Float("1e-6")
"""How far a decimal may be from the irrational number it stands for, relative to that number."""
_VANISHING = sympy.Float("1e-180")
"""What is computed for a zero that does not simplify is below this."""
_NO_VALUE = (ValueError, ArithmeticError, NotImplementedError)
"""What the engine raises for an expression it cannot compute."""
_WITNESSES = tuple(Fraction(top, bottom) for top, bottom in ((7, 5), (13, 4), (23, 7), (31, 9), (41, 17), (53, 12)))


def exact_value(expression: Any) -> Fraction | None:
    """The exact rational value of an expression in numbers only, decimals taken as written; None for anything else."""
    if isinstance(expression, Fraction):
        return expression
    if isinstance(expression, sympy.Rational):
        return Fraction(int(expression.p), int(expression.q))
    if isinstance(expression, sympy.Float):
        return _written(expression)
    if isinstance(expression, sympy.UnevaluatedExpr):
        return exact_value(expression.args[0])
    if isinstance(expression, sympy.Abs):
        inner = exact_value(expression.args[0])
        return None if inner is None else abs(inner)
    if isinstance(expression, sympy.factorial):
        inner = exact_value(expression.args[0])
        small = inner is not None and inner.denominator == 1 and 0 <= inner <= 1000
        return Fraction(math.factorial(int(inner))) if inner is not None and small else None
    if isinstance(expression, (sympy.Add, sympy.Mul)):
        return _fold(expression)
    if isinstance(expression, sympy.Pow):
        return _power(exact_value(expression.base), exact_value(expression.exp))
    return None


def with_exact_decimals(expression: Any) -> Any:
    """The expression with every decimal as the fraction that was written."""
    exact = {number: _written(number) for number in expression.atoms(sympy.Float)}
    return expression.xreplace(
        {n: sympy.Rational(f.numerator, f.denominator) for n, f in exact.items() if f is not None}
    )


def _written(number: Any) -> Fraction | None:
    """A decimal as it was written, not its nearest binary fraction."""
    if not number.is_finite or abs(int(sympy.Float(number)._mpf_[2])) > _MAX_BITS:
        return None
    return Fraction(str(number))


def _fold(expression: Any) -> Fraction | None:
    total = Fraction(0) if isinstance(expression, sympy.Add) else Fraction(1)
    for argument in expression.args:
        value = exact_value(argument)
        if value is None:
            return None
        total = total + value if isinstance(expression, sympy.Add) else total * value
        if max(total.numerator.bit_length(), total.denominator.bit_length()) > _MAX_BITS:
            return None
    return total


def _power(base: Fraction | None, exponent: Fraction | None) -> Fraction | None:
    if base is None or exponent is None or exponent.denominator != 1 or (base == 0 and exponent <= 0):
        return None
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    return base ** int(exponent) if bits * abs(int(exponent)) <= _MAX_BITS else None


def has_unknowns(expression: Any) -> bool:
    """Whether an expression holds a letter, or a function that only has a name, as ``f(5)``."""
    return bool(getattr(expression, "free_symbols", True)) or expression.has(AppliedUndef)


def refuted(left: Any, right: Any) -> bool:
    """Whether two scalars are certainly different."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left != right
    exact_left, exact_right = exact_value(left), exact_value(right)
    if exact_left is not None and exact_right is not None:
        return exact_left != exact_right
    tolerance = max(_tolerance(left), _tolerance(right))
    names = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: str(symbol.name))
    if len(names) > len(_WITNESSES) or not all(isinstance(name, sympy.Symbol) for name in names):
        return False
    values = {name: sympy.Rational(w.numerator, w.denominator) for name, w in zip(names, _WITNESSES, strict=False)}
    return _differ_numerically(left, right, values, tolerance)


def _tolerance(expression: Any) -> Any:
    if expression.has(sympy.Float):
        return _RELATIVE_DECIMAL
    return _RELATIVE_LIMIT if expression.has(*_LIMITS) else _RELATIVE


def _differ_numerically(left: Any, right: Any, values: dict[Any, Any], tolerance: Any) -> bool:
    try:
        left, right = left.doit().subs(values), right.doit().subs(values)
        exact_left, exact_right = exact_value(left), exact_value(right)
        if tolerance == _RELATIVE and exact_left is not None and exact_right is not None:
            return exact_left != exact_right
        one, two = left.evalf(_DIGITS, maxn=200), right.evalf(_DIGITS, maxn=200)
    except _NO_VALUE:
        return False  # not a number the engine can compute: its own verdict stands
    if not (one.is_number and two.is_number and one.is_finite and two.is_finite):
        return False
    size = max(abs(one), abs(two))
    return bool(size > _VANISHING and abs(one - two) > tolerance * size)


def is_finite(expression: Any) -> bool:
    """Whether an expression without unknowns is a finite number, and one with unknowns holds no undefined or infinite part."""
    if not has_unknowns(expression):
        return exact_value(expression) is not None or number_of(expression) is not None
    if expression.has(*_LIMITS):
        return True  # their bounds may be infinite, and to compute them for every unknown takes too long
    try:
        return not expression.doit().has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo)
    except _NO_VALUE:
        return False


def number_of(expression: Any, digits: int = _DIGITS) -> Any | None:
    """The finite number an expression without unknowns is, to so many digits; None where it is none."""
    try:
        number = expression.doit().evalf(digits, maxn=200)
    except _NO_VALUE:
        return None
    parts = number.as_real_imag()
    return number if all(isinstance(part, (sympy.Rational, sympy.Float)) for part in parts) else None
