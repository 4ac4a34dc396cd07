"""The value of an expression where its names have values: exact fractions as long as possible, else 60 digits.

Functions that only have a name, as ``f`` in ``f(x+1)``, have values of their own: numbers that are drawn from the name and the
values it is applied to, so that ``f(g(x))`` and ``g(f(x))`` differ. Letters for vectors and matrices are drawn as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from rlep.services.verifier.latex import analysis
from rlep.services.verifier.latex.functions import FUNCTION_RULES, whole
from rlep.services.verifier.latex.nodes import Node, has, infinity_in, unknowns
from rlep.services.verifier.latex.operations import (
    MAX_BITS,
    add,
    binomial,
    cross,
    determinant,
    length,
    multiply,
    power,
    root,
    transposed,
)
from rlep.services.verifier.latex.points import (
    MP,
    Matrix,
    NoValue,
    SamplePoint,
    Scalar,
    Value,
    draw,
    indexed,
    is_real,
    number,
    real,
    shown,
    tiny,
)

_MAX_TERMS = 2000
"""Longer sums have no value here."""
_CONSTANTS = frozenset("abckmnpqABCKN") | {"\\alpha", "\\beta", "\\gamma", "\\lambda", "\\mu", "\\omega", "\\sigma"}
"""Letters that do not depend on the variable of a derivative, by custom."""
_SIZE = 3
"""Rows of a matrix and numbers in a vector that stand for a letter."""


def evaluate(node: Node, point: SamplePoint) -> Value:
    """The value of an expression at a point. Raises NoValue."""
    rule = _RULES.get(node.kind)
    if rule is None:
        raise NoValue(f"{node.kind} has no value")
    try:
        return _checked(rule(node, point))
    except NoValue:
        raise
    except (ZeroDivisionError, OverflowError, ValueError, MP.NoConvergence) as error:  # mpmath's, at poles
        raise NoValue(str(error)) from None


def _checked(value: Value) -> Value:
    """A finite value, exact where it is a fraction."""
    if isinstance(value, Matrix):
        return Matrix(tuple(tuple(_checked(cell) for cell in row) for row in value.rows))
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise NoValue("a fraction of too many digits")
        return value
    if not MP.isfinite(value):
        raise NoValue("not finite")
    return value


def scalar(node: Node, point: SamplePoint) -> Scalar:
    """The value, which must be a scalar. Raises NoValue."""
    value = evaluate(node, point)
    if isinstance(value, Matrix):
        raise NoValue("a vector or matrix where a number is needed")
    return value


def _named(node: Node, point: SamplePoint) -> Value:
    name = indexed(node.name, point)
    if name in point.bound:
        return point.bound[name]
    if name == "e":
        return MP.e
    if name == "i" and point.imaginary:
        return MP.mpc(0, 1)
    if name in point.matrices:
        return _drawn(point, name, _SIZE)
    if name in point.vectors:
        return _drawn(point, name, 1)
    if name in point.complexes and name.startswith("\\bar "):
        return MP.conj(_named(Node("name", (), name.removeprefix("\\bar ")), replace(point, bound={})))
    if name in point.complexes:
        return MP.mpc(number(draw(point, name)), number(draw(point, name, "imaginary") - 2))
    if name in point.integers:
        return Fraction(2 + int(draw(point, name) * 6007) % 9 * point.scale)
    value = Fraction(int(draw(point, name) * 6007) % 4) if point.whole else draw(point, name) * point.scale
    return -value if point.kind == "both" and int(draw(point, name, "sign") * 6007) % 2 else value


def _drawn(point: SamplePoint, name: str, columns: int) -> Matrix:
    return Matrix(
        tuple(tuple(draw(point, name, str(row), str(column)) for column in range(columns)) for row in range(_SIZE))
    )


def _constant(node: Node, point: SamplePoint) -> Scalar:
    if node.name == "pi":
        return MP.pi()
    raise NoValue("infinity is no number")


def _sum(node: Node, point: SamplePoint) -> Value:
    total = evaluate(node.parts[0], point)
    for part in node.parts[1:]:
        total = add(total, evaluate(part, point))
    return total


def _product(node: Node, point: SamplePoint) -> Value:
    total = evaluate(node.parts[0], point)
    for part in node.parts[1:]:
        value = evaluate(part, point)
        if isinstance(total, Matrix) and isinstance(value, Matrix) and total.shape[1] == 1 == value.shape[1]:
            raise NoValue("two vectors side by side")
        total = multiply(total, value)
    return total


def _vectors(node: Node, point: SamplePoint) -> tuple[Value, Value, bool]:
    """Both operands, and whether they are vectors of one size."""
    left, right = evaluate(node.parts[0], point), evaluate(node.parts[1], point)
    both = isinstance(left, Matrix) and isinstance(right, Matrix) and left.shape == right.shape and left.shape[1] == 1
    return left, right, both


def _dot(node: Node, point: SamplePoint) -> Value:
    left, right, vectors = _vectors(node, point)
    return multiply(transposed(left), right) if vectors else multiply(left, right)


def _cross(node: Node, point: SamplePoint) -> Value:
    left, right, vectors = _vectors(node, point)
    return cross(left, right) if vectors else multiply(left, right)


def _transpose(node: Node, point: SamplePoint) -> Value:
    value = evaluate(node.parts[0], point)
    if not isinstance(value, Matrix):
        raise NoValue("the transpose of a number")
    return transposed(value)


def _quotient(node: Node, point: SamplePoint) -> Value:
    top, bottom = evaluate(node.parts[0], point), scalar(node.parts[1], point)
    if not isinstance(bottom, Fraction) and abs(bottom) < tiny():
        raise NoValue("a division by zero")
    return multiply(top, 1 / bottom)


def _power(node: Node, point: SamplePoint) -> Value:
    base, exponent = node.parts
    if exponent.kind == "name" and exponent.name == "T" and "T" not in point.integers:
        value = evaluate(base, point)
        if isinstance(value, Matrix):
            return transposed(value)
    return power(evaluate(base, point), scalar(exponent, point), point)


def _either(node: Node, point: SamplePoint) -> Value:
    """The upper sign."""
    return multiply(Fraction(1 if node.name == "\\pm" else -1), evaluate(node.parts[0], point))


def _apply(node: Node, point: SamplePoint) -> Value:
    """A function that only has a name: a number that is drawn from the name and the values in the bracket."""
    head, *arguments = node.parts
    values = [shown(evaluate(argument, point)) for argument in arguments]
    order = repr(head) if head.kind == "power" else head.name
    return draw(point, "applied", order + node.name[1:], *values) - 2  # of either sign, so that |f(x)| is not f(x)


def _derivative(node: Node, point: SamplePoint) -> Scalar:
    """The first derivative by one letter; of functions without a value, and of a higher order, a number drawn from its text."""
    body = node.parts[0]
    words = node.name.split()
    variable, order = words[2], words[3:]
    names = unknowns(body) - {"e"}
    opaque = has(body, "apply") or (bool(names) and variable not in names) or bool(names - {variable} - _CONSTANTS)
    if len(words) != 3 or opaque or variable in point.bound:
        return draw(point, "derivative", node.name, repr(body), *order)
    point.rough.append("derivative")
    at = number(scalar(Node("name", (), variable), point))
    return MP.diff(lambda x: number(scalar(body, _with(point, variable, x))), at)


def _with(point: SamplePoint, variable: str, value: Scalar) -> SamplePoint:
    """The point where a variable of a sum, an integral or a limit has a value."""
    return replace(point, bound={**point.bound, variable: value})


def _total(node: Node, point: SamplePoint) -> Scalar:
    """A sum or a product over whole numbers."""
    low, high, body = node.parts
    times = node.kind == "running product"
    (start,) = whole([scalar(low, point)])
    if high == Node("constant", (), "infty") and not times:
        point.rough.append("series")
        return analysis.series(lambda index: number(scalar(body, _with(point, node.name, Fraction(index)))), start)
    (end,) = whole([scalar(high, point)])
    if end - start > _MAX_TERMS:
        raise NoValue("too many terms")
    total: Value = Fraction(int(times))
    for index in range(start, end + 1):
        term = evaluate(body, _with(point, node.name, Fraction(index)))
        total = multiply(total, term) if times else add(total, term)
    return total


def _limit(node: Node, point: SamplePoint) -> Scalar:
    target, body = node.parts
    variable = node.name.rstrip("+-")
    point.rough.append("limit")
    endless = infinity_in(target)

    def place(exponent: int, sign: int) -> Scalar:
        if endless is not None:
            return endless * MP.mpf(10) ** exponent
        return number(scalar(target, point)) + sign * MP.mpf(10) ** -exponent

    both = node.name == variable and endless is None
    signs = (1, -1) if both else (-1 if node.name.endswith("-") else 1,)
    return analysis.limit(lambda at: number(scalar(body, _with(point, variable, at))), place, signs)


def _integral(node: Node, point: SamplePoint) -> Scalar:
    """A definite integral; of functions without a value, a number that is drawn from its bounds and its integrand."""
    if len(node.parts) != 3:
        raise NoValue("an integral without bounds")
    body, *bounds = node.parts
    point.rough.append("integral")
    ends = [_end(bound, point) for bound in bounds]
    names = unknowns(body) - {"e"}
    if has(body, "apply", "derivative") or (names and node.name not in names):
        value = evaluate(body, _with(point, node.name, Fraction(355, 113)))
        return draw(point, "integral", node.name if node.name not in names else "", *map(str, ends), shown(value))
    return analysis.integral(lambda at: number(scalar(body, _with(point, node.name, at))), ends)


def _end(node: Node, point: SamplePoint) -> Scalar:
    """A bound of an integral."""
    if (endless := infinity_in(node)) is not None:
        return endless * MP.inf
    value = real(number(scalar(node, point)))
    if not is_real(value):
        raise NoValue("a complex bound")
    return value


def _function(node: Node, point: SamplePoint) -> Value:
    if node.name == "det":
        value = evaluate(node.parts[0], point)
        if not isinstance(value, Matrix) or value.shape[0] != value.shape[1]:
            raise NoValue("the determinant of something else than a square matrix")
        return determinant(value.rows)
    if node.name not in FUNCTION_RULES:
        raise NoValue(f"{node.name} of several numbers")
    return FUNCTION_RULES[node.name]([scalar(part, point) for part in node.parts], point)


def _absolute(node: Node, point: SamplePoint) -> Value:
    inner = node.parts[0]
    if inner.kind == "set":
        return Fraction(len({shown(evaluate(part, point)) for part in inner.parts}))
    value = evaluate(inner, point)
    if isinstance(value, Matrix):
        return _norm(node, point)
    return abs(value)


def _norm(node: Node, point: SamplePoint) -> Scalar:
    """The length of a vector; of anything else a number that is drawn from its value."""
    value = evaluate(node.parts[0], point)
    if not isinstance(value, Matrix):
        return draw(point, "norm", shown(value))
    return length(value)


def _modulo(node: Node, point: SamplePoint) -> Scalar:
    left, right = whole([scalar(part, point) for part in node.parts])
    if right == 0:
        raise NoValue("modulo zero")
    return Fraction(left % right)


def _matrix(node: Node, point: SamplePoint) -> Matrix:
    return Matrix(tuple(tuple(scalar(cell, point) for cell in row.parts) for row in node.parts))


def _tuple(node: Node, point: SamplePoint) -> Matrix:
    """A tuple in parentheses as a column vector."""
    if node.name != "()":
        raise NoValue("an interval is no vector")
    return Matrix(tuple((scalar(part, point),) for part in node.parts))


_RULES: dict[str, Callable[[Node, SamplePoint], Value]] = {
    "number": lambda node, point: node.value,
    "name": _named,
    "constant": _constant,
    "group": lambda node, point: evaluate(node.parts[0], point),
    "negative": lambda node, point: multiply(Fraction(-1), evaluate(node.parts[0], point)),
    "either": _either,
    "sum": _sum,
    "product": _product,
    "dot": _dot,
    "cross": _cross,
    "quotient": _quotient,
    "power": _power,
    "root": lambda node, point: root(scalar(node.parts[0], point), scalar(node.parts[1], point), point),
    "transpose": _transpose,
    "binomial": lambda node, point: binomial(scalar(node.parts[0], point), scalar(node.parts[1], point)),
    "apply": _apply,
    "derivative": _derivative,
    "total": _total,
    "running product": _total,
    "integral": _integral,
    "limit": _limit,
    "function": _function,
    "absolute": _absolute,
    "norm": _norm,
    "modulo": _modulo,
    "matrix": _matrix,
    "tuple": _tuple,
    "operator": lambda node, point: draw(point, "operator", node.name),
    "degrees": lambda node, point: multiply(evaluate(node.parts[0], point), MP.pi() / 180),
}
