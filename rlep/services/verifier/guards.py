"""Exact checks behind the symbolic engine, in worker processes only.

``stands`` turns an equality that the engine found into ``wrong`` where exact arithmetic or more digits refute it; it
never turns anything into ``correct``. Nothing here formats an expression, other than single numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Relational

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
_UNREAD = re.compile(r"'|\\prime(?![a-zA-Z])|\\[lc]?dots(?![a-zA-Z])|\.\.\.|(?<![\^{\d])\d+[)} ]*_")
_BETWEEN = re.compile(r"[,;]|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}")
_DENIAL = re.compile(r"(?<![a-zA-Z\\])(?:not|never|false|wrong|incorrect)(?![a-zA-Z])|\\(?:neg|lnot)(?![a-zA-Z])", re.I)
_WITNESSES = tuple(Fraction(top, bottom) for top, bottom in ((7, 5), (13, 4), (23, 7), (31, 9), (41, 17), (53, 12)))


def stands(reference: str, answer: str, gold: Any, target: Any) -> bool:
    """Whether ``gold == target``, as found by the engine, stands."""
    if not consistent(target):
        return False
    if _kind_of_brackets(reference, answer) or _nested(reference, gold) != _nested(answer, target):
        return False
    if _repeats_itself(reference, answer, target) or _repeats_itself(answer, reference, gold):
        return False
    if _DENIAL.search(answer) and not _DENIAL.search(reference):
        return False
    if _unread(reference, answer) != _unread(answer, reference):
        return False
    pairs = list(_parts(_right_side(gold, target), _right_side(target, gold)))
    return not any(_refuted(left, right) for left, right in pairs)


def consistent(expression: Any) -> bool:
    """Whether neighbouring sides of a chain of ``=`` without unknowns agree: ``43 = 42`` and ``n = 41 = 42`` do not."""
    links = expression._unsorted_args if isinstance(expression, And) else (expression,)
    for link in links:
        if isinstance(link, sympy.Eq) and not _has_unknowns(link.lhs) and not _has_unknowns(link.rhs):
            if not (isinstance(link.lhs, sympy.Expr) and isinstance(link.rhs, sympy.Expr)):
                continue
            if _refuted(link.lhs, link.rhs):
                return False
    return True


def approximate(values: Sequence[Any]) -> bool:
    """Whether the sides of ``≈`` that are numbers lie within 1 % of the first of them."""
    numbers = [number for value in values if (number := _number(last_side(value))) is not None]
    return all(abs(number - numbers[0]) <= 0.01 * abs(numbers[0]) for number in numbers)


def _number(value: Any) -> Any | None:
    if not isinstance(value, sympy.Expr) or _has_unknowns(value):
        return None
    number = value.doit().evalf(15, maxn=200)
    return number if number.is_number and number.is_finite else None


def _unread(latex: str, other: str) -> set[str]:
    """The marks in an answer that the engine passes over: primes, dots, the subscript of a number (as ``_``)."""
    value = latex if "=" in other else latex.rpartition("=")[2]
    found = {match.group() for match in _UNREAD.finditer(value)}
    return {"_" if mark.endswith("_") else "'" if mark in ("'", "\\prime") else "..." for mark in found}


def _kind_of_brackets(reference: str, answer: str) -> bool:
    """Whether one side is a set in braces and the other an ordered tuple or interval in parentheses or brackets."""
    kinds = {_brackets(reference), _brackets(answer)}
    return kinds == {"set", "tuple"}


def _repeats_itself(reference: str, answer: str, target: Any) -> bool:
    """Whether the answer lists a value more often than the reference: ``2, 2`` is not 2. Braces make a set of it."""
    if not isinstance(target, sympy.FiniteSet) or "\\{" in answer or any(mark in answer for mark in "([|"):
        return False
    listed = len(_BETWEEN.findall(answer))
    return listed + 1 > len(target.args) and listed > len(_BETWEEN.findall(reference))


def _nested(latex: str, expression: Any) -> bool:
    """Whether this is a set of sets; braces that only group do not make one."""
    if not isinstance(expression, sympy.FiniteSet) or latex.count("\\{") < 2:
        return False
    return any(isinstance(item, sympy.Set) for item in expression.args)


def _brackets(latex: str) -> str | None:
    latex = latex.strip()
    if latex.startswith("\\{") and latex.endswith("\\}"):
        return "set"
    if latex[:1] in "([" and latex[-1:] in ")]" and latex[:1] and "," in latex and _closes_last(latex):
        return "tuple"
    return None


def _closes_last(latex: str) -> bool:
    depth = 0
    for position, character in enumerate(latex):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return position == len(latex) - 1
    return False


def _right_side(expression: Any, other: Any) -> Any:
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


def _refuted(left: Any, right: Any) -> bool:
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
        if not (one.is_number and two.is_number and one.is_finite and two.is_finite):
            return False
        size = max(abs(one), abs(two))
        return bool(size > _VANISHING and abs(one - two) > tolerance * size)
    except (ValueError, TypeError, ArithmeticError, AttributeError, NotImplementedError):
        return False  # not a number the engine can compute: its own verdict stands


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


def _has_unknowns(expression: Any) -> bool:
    return bool(getattr(expression, "free_symbols", True))


def is_relation(expression: Any) -> bool:
    """Whether this is an inequality or equation, or a chain of them."""
    return isinstance(expression, (Relational, And))


def differ_in_unknown(gold: Any, target: Any) -> bool:
    """Whether these are inequalities about different unknowns: ``x > 2`` and ``y > 2``."""
    if not (_inequality(gold) and _inequality(target)):
        return False
    names = [{str(symbol.name).casefold() for symbol in side.free_symbols} for side in (gold, target)]
    return names[0] != names[1]


def _inequality(expression: Any) -> bool:
    """Whether this is an inequality, or several of which one holds."""
    if isinstance(expression, sympy.FiniteSet):
        return bool(expression.args) and all(map(_inequality, expression.args))
    return is_relation(expression) and not expression.has(sympy.Eq)
