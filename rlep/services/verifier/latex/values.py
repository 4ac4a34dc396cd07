"""The value of an expression where its names have values: exact fractions as long as possible, else 60 digits.

Functions that only have a name, as ``f`` in ``f(x+1)``, have values of their own: a number that is drawn from the name and the
values it is applied to, so that ``f(g(x))`` and ``g(f(x))`` differ. Letters that stand for vectors and matrices are drawn as such.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import mpmath

from rlep.services.verifier.latex.syntax import Node

MP = mpmath.mp.clone()
"""A context of its own: the symbolic engine changes the precision of the shared one."""
MP.dps = 60
_MAX_BITS = 40_000
_MAX_TERMS = 2000
_SIZE = 3
"""Rows of a matrix and numbers in a vector that stand for a letter."""

Scalar = Any
"""``Fraction``, or a real or complex number of ``MP``."""


class NoValue(ValueError):
    """The expression has no finite value here, or none that this module can compute."""


class Infinite(NoValue):
    """A limit that grows without bound."""

    def __init__(self, sign: int) -> None:
        super().__init__("not finite")
        self.sign = sign


class OutOfDomain(NoValue):
    """A root or logarithm of a negative number, where only real numbers are wanted."""


@dataclass(frozen=True)
class Matrix:
    """Rows of scalars; a vector has one column."""

    rows: tuple[tuple[Scalar, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """``(rows, columns)``."""
        return len(self.rows), len(self.rows[0])


Value = Any
"""A scalar or a ``Matrix``."""


@dataclass(frozen=True)
class Point:
    """What the names stand for while an expression is computed."""

    seed: str
    """Equal seeds draw equal values."""
    kind: str = "complex"
    """Real results of ``positive`` numbers or of numbers of ``both`` signs, or ``complex`` results of positive numbers."""
    integers: frozenset[str] = frozenset()
    """Names that stand for whole numbers."""
    factors: frozenset[str] = frozenset()
    """Names that are multiplied with the bracket behind them."""
    matrices: frozenset[str] = frozenset()
    vectors: frozenset[str] = frozenset()
    imaginary: bool = False
    """Whether ``i`` is the imaginary unit."""
    sign: int = 1
    """What ``\\pm`` stands for."""
    bound: Mapping[str, Scalar] = field(default_factory=dict)
    """Values of the variables of sums and integrals."""
    rough: list[str] = field(default_factory=list)
    """Filled with each operation that was computed to fewer digits."""


def draw(point: Point, *address: str) -> Fraction:
    """A number in (0, 4) that only the address decides, with a small denominator."""
    digest = hashlib.blake2b("|".join((point.seed, *address)).encode(), digest_size=8).digest()
    top = int.from_bytes(digest, "big")
    low = Fraction(1, 23) if top & 1 else Fraction(1)
    return low + Fraction((top >> 1) % 6007, 6007) * (Fraction(20, 23) if top & 1 else 3)


def evaluate(node: Node, point: Point) -> Value:
    """The value of an expression at a point. Raises NoValue."""
    try:
        return _checked(_RULES[node.kind](node, point))
    except KeyError:
        raise NoValue(f"{node.kind} has no value") from None
    except (ZeroDivisionError, OverflowError, TypeError, ValueError, MP.NoConvergence) as error:
        raise error if isinstance(error, NoValue) else NoValue(str(error)) from None


def _checked(value: Value) -> Value:
    if isinstance(value, Matrix):
        return Matrix(tuple(tuple(_checked(cell) for cell in row) for row in value.rows))
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            return number(value)
        return value
    if not MP.isfinite(value):
        raise NoValue("not finite")
    return value


def number(value: Scalar) -> Scalar:
    """A fraction as a number of 60 digits; anything else as it is."""
    return MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def scalar(node: Node, point: Point) -> Scalar:
    """The value, which must be a scalar. Raises NoValue."""
    value = evaluate(node, point)
    if isinstance(value, Matrix):
        raise NoValue("a vector or matrix where a number is needed")
    return value


def _real(value: Scalar) -> Scalar:
    """A number whose imaginary part is only rounding."""
    if isinstance(value, MP.mpc) and abs(value.imag) <= MP.mpf("1e-50") * max(1, abs(value.real)):
        return value.real
    return value


def _is_real(value: Scalar) -> bool:
    return not isinstance(_real(value), MP.mpc)


def _named(node: Node, point: Point) -> Value:
    name = node.name
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
    if name in point.integers:
        return Fraction(2 + int(draw(point, name) * 6007) % 9)
    value = draw(point, name)
    return -value if point.kind == "both" and int(draw(point, name, "sign") * 6007) % 2 else value


def _drawn(point: Point, name: str, columns: int) -> Matrix:
    return Matrix(tuple(tuple(draw(point, name, str(row), str(column)) for column in range(columns)) for row in range(_SIZE)))


def _constant(node: Node, point: Point) -> Scalar:
    if node.name == "pi":
        return MP.pi()
    raise NoValue("infinity is no number")


def add(left: Value, right: Value) -> Value:
    """The sum of two values of one shape."""
    if isinstance(left, Matrix) or isinstance(right, Matrix):
        if not (isinstance(left, Matrix) and isinstance(right, Matrix) and left.shape == right.shape):
            raise NoValue("a sum of different shapes")
        return Matrix(tuple(tuple(map(add, one, two)) for one, two in zip(left.rows, right.rows, strict=True)))
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    return number(left) + number(right)


def multiply(left: Value, right: Value) -> Value:
    """The product of two values."""
    if isinstance(left, Matrix) and isinstance(right, Matrix):
        if left.shape[1] != right.shape[0]:
            raise NoValue("a product of shapes that do not fit")
        columns = list(zip(*right.rows, strict=True))
        product = Matrix(tuple(tuple(_inner(row, column) for column in columns) for row in left.rows))
        return product.rows[0][0] if product.shape == (1, 1) else product
    if isinstance(left, Matrix):
        return Matrix(tuple(tuple(multiply(cell, right) for cell in row) for row in left.rows))
    if isinstance(right, Matrix):
        return multiply(right, left)
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    return number(left) * number(right)


def _inner(left: tuple[Scalar, ...], right: tuple[Scalar, ...]) -> Scalar:
    total: Scalar = Fraction(0)
    for one, two in zip(left, right, strict=True):
        total = add(total, multiply(one, two))
    return total


def _sum(node: Node, point: Point) -> Value:
    total = evaluate(node.parts[0], point)
    for part in node.parts[1:]:
        total = add(total, evaluate(part, point))
    return total


def _product(node: Node, point: Point) -> Value:
    total = evaluate(node.parts[0], point)
    for part in node.parts[1:]:
        value = evaluate(part, point)
        if isinstance(total, Matrix) and isinstance(value, Matrix) and total.shape[1] == 1 == value.shape[1]:
            raise NoValue("two vectors side by side")
        total = multiply(total, value)
    return total


def _vectors(node: Node, point: Point) -> tuple[Value, Value, bool]:
    left, right = evaluate(node.parts[0], point), evaluate(node.parts[1], point)
    both = isinstance(left, Matrix) and isinstance(right, Matrix) and left.shape == right.shape and left.shape[1] == 1
    return left, right, both


def _dot(node: Node, point: Point) -> Value:
    left, right, vectors = _vectors(node, point)
    return multiply(_transposed(left), right) if vectors else multiply(left, right)


def _cross(node: Node, point: Point) -> Value:
    left, right, vectors = _vectors(node, point)
    if not vectors:
        return multiply(left, right)
    if left.shape[0] != 3:
        raise NoValue("a vector product needs three dimensions")
    (a,), (b,), (c,) = left.rows
    (x,), (y,), (z,) = right.rows
    less = Fraction(-1)
    pairs = ((b, z, c, y), (c, x, a, z), (a, y, b, x))
    return Matrix(tuple((add(multiply(p, q), multiply(less, multiply(r, s))),) for p, q, r, s in pairs))


def _transposed(matrix: Matrix) -> Matrix:
    return Matrix(tuple(zip(*matrix.rows, strict=True)))


def _transpose(node: Node, point: Point) -> Value:
    value = evaluate(node.parts[0], point)
    if not isinstance(value, Matrix):
        raise NoValue("the transpose of a number")
    return _transposed(value)


def _quotient(node: Node, point: Point) -> Value:
    top, bottom = evaluate(node.parts[0], point), scalar(node.parts[1], point)
    if isinstance(bottom, Fraction):
        return multiply(top, 1 / bottom)
    if abs(bottom) < MP.mpf("1e-50"):
        raise NoValue("a division by zero")
    return multiply(top, 1 / bottom)


def power(base: Value, exponent: Scalar, point: Point) -> Value:
    """``base ** exponent``; a root of a negative number is complex, or out of the domain where only real numbers are wanted."""
    if isinstance(base, Matrix):
        return _matrix_power(base, exponent)
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        count = int(exponent)
        if isinstance(base, Fraction):
            if base == 0 and count <= 0:
                raise NoValue("a power of zero")
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits * abs(count) <= _MAX_BITS:
                return base**count
        return number(base) ** count
    base, exponent = _real(number(base)), _real(number(exponent))
    if base == 0:
        if _is_real(exponent) and exponent > 0:
            return Fraction(0)
        raise NoValue("a power of zero")
    if point.kind != "complex" and _is_real(base) and base < 0:
        raise OutOfDomain("a root of a negative number")
    return _real(MP.power(base, exponent))


def _matrix_power(base: Matrix, exponent: Scalar) -> Matrix:
    if not isinstance(exponent, Fraction) or exponent.denominator != 1 or base.shape[0] != base.shape[1] or abs(exponent) > 64:
        raise NoValue("a power of a matrix")
    if exponent < 0:
        inverse = MP.matrix([[number(cell) for cell in row] for row in base.rows]) ** -1
        base = Matrix(tuple(tuple(inverse[row, column] for column in range(inverse.cols)) for row in range(inverse.rows)))
    size = base.shape[0]
    total = Matrix(tuple(tuple(Fraction(row == column) for column in range(size)) for row in range(size)))
    for _ in range(abs(int(exponent))):
        total = multiply(total, base)
        total = total if isinstance(total, Matrix) else Matrix(((total,),))
    return total


def _power(node: Node, point: Point) -> Value:
    base, exponent = node.parts
    if exponent.kind == "name" and exponent.name == "T" and "T" not in point.integers:
        value = evaluate(base, point)
        if isinstance(value, Matrix):
            return _transposed(value)
    return power(evaluate(base, point), scalar(exponent, point), point)


def _root(node: Node, point: Point) -> Scalar:
    value, index = scalar(node.parts[0], point), scalar(node.parts[1], point)
    if not isinstance(index, Fraction) or index.denominator != 1 or index < 1:
        return power(value, 1 / number(index) if not isinstance(index, Fraction) else 1 / index, point)
    odd = int(index) % 2 == 1
    value = _real(value)
    if _is_real(value) and value < 0 and odd:
        return multiply(Fraction(-1), power(-value, 1 / index, point))
    exact = _exact_root(value, int(index))
    return exact if exact is not None else power(value, 1 / index, point)


def _exact_root(value: Scalar, index: int) -> Fraction | None:
    if not isinstance(value, Fraction) or value < 0 or index > 64:
        return None
    roots = []
    for part in (value.numerator, value.denominator):
        root = int(MP.nint(MP.root(part, index))) if part.bit_length() < 150 else 0
        if root**index != part:
            return None
        roots.append(root)
    return Fraction(roots[0], roots[1])


def _either(node: Node, point: Point) -> Value:
    sign = point.sign if node.name == "\\pm" else -point.sign
    return multiply(Fraction(sign), evaluate(node.parts[0], point))


def _binomial(node: Node, point: Point) -> Scalar:
    top, bottom = scalar(node.parts[0], point), scalar(node.parts[1], point)
    if isinstance(top, Fraction) and isinstance(bottom, Fraction) and top.denominator == bottom.denominator == 1 and 0 <= bottom <= 5000:
        value = Fraction(1)
        for step in range(int(bottom)):
            value = value * (top - step) / (step + 1)
        return value
    return MP.binomial(number(top), number(bottom))


def _apply(node: Node, point: Point) -> Value:
    head, *arguments = node.parts
    base = head.parts[0] if head.kind == "power" else head
    if base.name in point.factors and len(arguments) == 1:
        return multiply(evaluate(head, point), evaluate(arguments[0], point))
    values = [_shown(evaluate(argument, point)) for argument in arguments]
    order = repr(head) if head.kind == "power" else head.name
    return draw(point, "applied", order, *values)


def _shown(value: Value) -> str:
    if isinstance(value, Matrix):
        return ";".join(",".join(_shown(cell) for cell in row) for row in value.rows)
    return str(MP.nstr(_real(number(value)), 30))


def _derivative(node: Node, point: Point) -> Scalar:
    body = node.parts[0]
    words = node.name.split()
    variable, order = words[2], words[3:]
    if len(words) != 3 or _has(body, "apply") or variable in point.bound:
        return draw(point, "derivative", node.name, repr(body), *order)
    point.rough.append("derivative")
    at = number(scalar(Node("name", (), variable), point))
    return MP.diff(lambda x: number(scalar(body, replace(point, bound={**point.bound, variable: x}))), at)


def _has(node: Node, kind: str) -> bool:
    return node.kind == kind or any(_has(part, kind) for part in node.parts)


def _total(node: Node, point: Point) -> Scalar:
    low, high, body = node.parts
    start = scalar(low, point)
    times = node.kind == "running product"
    if high.kind == "constant" and high.name == "infty" and not times:
        point.rough.append("series")
        return _series(node.name, start, body, point)
    end = scalar(high, point)
    if not (isinstance(start, Fraction) and isinstance(end, Fraction) and start.denominator == end.denominator == 1):
        raise NoValue("bounds that are not whole")
    if end - start > _MAX_TERMS:
        raise NoValue("too many terms")
    total: Value = Fraction(int(times))
    for index in range(int(start), int(end) + 1):
        term = evaluate(body, replace(point, bound={**point.bound, node.name: Fraction(index)}))
        total = multiply(total, term) if times else add(total, term)
    return total


def _series(variable: str, start: Scalar, body: Node, point: Point) -> Scalar:
    """An infinite sum whose terms fall at least as fast as a geometric series or as 1/n²; no other has a value here."""

    def term(index: Any) -> Scalar:
        return number(scalar(body, replace(point, bound={**point.bound, variable: Fraction(int(index))})))

    near, far = abs(term(400)), abs(term(800))
    if far > near / 3 and near > MP.mpf("1e-40"):
        raise NoValue("a series that converges slowly, or not at all")
    context = MP.clone()
    context.dps = 25
    return context.nsum(term, [int(start), context.inf])


def _limit(node: Node, point: Point) -> Scalar:
    """The value close to the point from the sides that are asked for; it must not change any more."""
    target, body = node.parts
    variable, side = (node.name[:-1], node.name[-1]) if node.name[-1] in "+-" else (node.name, "")
    point.rough.append("limit")

    def near(exponent: int, sign: int) -> Scalar:
        sign, inner = (-1, target.parts[0]) if target.kind == "negative" else (sign, target)
        if inner.kind == "constant" and inner.name == "infty":
            at = sign * MP.mpf(10) ** exponent
        else:
            at = number(scalar(target, point)) + sign * MP.mpf(10) ** -exponent
        return number(scalar(body, replace(point, bound={**point.bound, variable: at})))

    infinite = _infinity(target) is not None
    signs = (1,) if side == "+" or infinite else (-1,) if side == "-" else (1, -1)
    found = [near(exponent, sign) for sign in signs for exponent in (18, 21)]
    if any(abs(value - found[-1]) > 1e-12 * max(1, abs(found[-1])) for value in found):
        grows = all(abs(far) > 2 * abs(close) > 2e9 for close, far in zip(found[::2], found[1::2], strict=True))
        ways = {bool(value > 0) for value in found if _is_real(value)}
        raise Infinite(1 if ways == {True} else -1) if grows and len(ways) == 1 else NoValue("a limit that does not exist")
    return found[-1]


def _infinity(node: Node) -> int | None:
    """The sign of an infinity that is written as one."""
    if node.kind in ("negative", "group"):
        inner = _infinity(node.parts[0])
        return inner if inner is None or node.kind == "group" else -inner
    return 1 if node.kind == "constant" and node.name == "infty" else None


def infinity_of(node: Node, point: Point) -> int | None:
    """The sign of the infinity that an expression is or tends to; None for any other."""
    if (written := _infinity(node)) is not None:
        return written
    try:
        evaluate(node, point)
    except Infinite as found:
        return found.sign
    except NoValue:
        pass
    return None


def _integral(node: Node, point: Point) -> Scalar:
    if len(node.parts) != 3:
        raise NoValue("an integral without bounds")
    body, low, high = node.parts
    point.rough.append("integral")
    context = MP.clone()
    context.dps = 20
    ends = [_end(low, point, context), _end(high, point, context)]
    if _has(body, "apply") or _has(body, "derivative"):
        bound = {**point.bound, node.name: Fraction(355, 113)}
        return draw(point, "integral", *map(str, ends), _shown(evaluate(body, replace(point, bound=bound))))
    value, error = context.quad(
        lambda x: number(scalar(body, replace(point, bound={**point.bound, node.name: context.mpf(x)}))), ends, error=True
    )
    if error > 1e-12:
        raise NoValue("an integral that does not converge")
    return value


def _end(node: Node, point: Point, context: Any) -> Any:
    sign, inner = (-1, node.parts[0]) if node.kind == "negative" else (1, node)
    if inner.kind == "constant" and inner.name == "infty":
        return sign * context.inf
    return number(scalar(node, point))


def _function(node: Node, point: Point) -> Value:
    if node.name == "det":
        value = evaluate(node.parts[0], point)
        if not isinstance(value, Matrix) or value.shape[0] != value.shape[1]:
            raise NoValue("the determinant of something else than a square matrix")
        return _determinant(value.rows)
    return _FUNCTIONS[node.name]([scalar(part, point) for part in node.parts], point)


def _determinant(rows: tuple[tuple[Scalar, ...], ...]) -> Scalar:
    if len(rows) == 1:
        return rows[0][0]
    if len(rows) > 6:
        raise NoValue("a large determinant")
    total: Scalar = Fraction(0)
    for column, cell in enumerate(rows[0]):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        total = add(total, multiply(Fraction((-1) ** column), multiply(cell, _determinant(minor))))
    return total


def _analytic(name: str) -> Callable[[list[Scalar], Point], Scalar]:
    function = getattr(MP, name)

    def compute(values: list[Scalar], point: Point) -> Scalar:
        (value,) = values
        if name in ("sin", "tan", "sinh", "tanh", "asin", "atan") and value == 0:
            return Fraction(0)
        found = _real(function(number(value)))
        if point.kind != "complex" and not _is_real(found) and _is_real(value):
            raise OutOfDomain(f"{name} of a number it does not take")
        return Fraction(0) if abs(found) < MP.mpf("1e-55") else found

    return compute


def _logarithm(values: list[Scalar], point: Point) -> Scalar:
    value = _real(number(values[0]))
    if value == 0:
        raise NoValue("the logarithm of zero")
    if point.kind != "complex" and _is_real(value) and value < 0:
        raise OutOfDomain("the logarithm of a negative number")
    found = MP.log(value)
    return found if len(values) == 1 else found / MP.log(number(values[1]))


def _whole(values: list[Scalar]) -> list[int]:
    if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
        raise NoValue("whole numbers are needed")
    return [int(value) for value in values]


def _factorial(values: list[Scalar], point: Point) -> Scalar:
    (value,) = values
    if isinstance(value, Fraction) and value.denominator == 1:
        if not 0 <= value:
            raise NoValue("the factorial of a negative number")
        if value <= 3000:
            return Fraction(math.factorial(int(value)))
    return MP.factorial(number(value))


def _double_factorial(values: list[Scalar], point: Point) -> Scalar:
    (value,) = _whole(values)
    if not 0 <= value <= 3000:
        raise NoValue("a double factorial")
    return Fraction(math.prod(range(value, 0, -2)))


def _rounded(values: list[Scalar], up: bool) -> Scalar:
    (value,) = values
    value = _real(value)
    if not _is_real(value):
        raise NoValue("a complex number is not rounded")
    return Fraction(int(MP.ceil(number(value)) if up else MP.floor(number(value)))) if not isinstance(value, Fraction) else (
        Fraction(-((-value.numerator) // value.denominator) if up else value.numerator // value.denominator)
    )


def _largest(values: list[Scalar], sign: int) -> Scalar:
    if len(values) < 2 or not all(_is_real(value) for value in values):
        raise NoValue("the largest of one")
    return max(values, key=lambda value: sign * number(_real(value)))


def _absolute(node: Node, point: Point) -> Value:
    inner = node.parts[0]
    if inner.kind == "set":
        return Fraction(len({_shown(evaluate(part, point)) for part in inner.parts}))
    value = evaluate(inner, point)
    if isinstance(value, Matrix):
        return _norm(node, point)
    return abs(value)


def _norm(node: Node, point: Point) -> Scalar:
    inner = node.parts[0]
    value = evaluate(inner, point)
    if not isinstance(value, Matrix) or value.shape[1] != 1:
        return draw(point, "norm", _shown(value)) if not isinstance(value, Matrix) else _raise("the norm of a matrix")
    total = _inner(tuple(row[0] for row in value.rows), tuple(row[0] for row in value.rows))
    exact = _exact_root(total, 2)
    return exact if exact is not None else MP.sqrt(number(total))


def _raise(reason: str) -> Any:
    raise NoValue(reason)


def _modulo(node: Node, point: Point) -> Scalar:
    left, right = _whole([scalar(part, point) for part in node.parts])
    if right == 0:
        raise NoValue("modulo zero")
    return Fraction(left % right)


def _matrix(node: Node, point: Point) -> Matrix:
    return Matrix(tuple(tuple(scalar(cell, point) for cell in row.parts) for row in node.parts))


def _tuple(node: Node, point: Point) -> Matrix:
    """A tuple in parentheses as a column vector."""
    if node.name != "()":
        raise NoValue("an interval is no vector")
    return Matrix(tuple((scalar(part, point),) for part in node.parts))


def _reciprocal(name: str) -> Callable[[list[Scalar], Point], Scalar]:
    inner = _analytic(name)

    def compute(values: list[Scalar], point: Point) -> Scalar:
        value = inner(values, point)
        if abs(value) < MP.mpf("1e-50"):
            raise NoValue("a division by zero")
        return 1 / value

    return compute


def _tangent(values: list[Scalar], point: Point) -> Scalar:
    cosine = _analytic("cos")(values, point)
    if abs(cosine) < MP.mpf("1e-50"):
        raise NoValue("the tangent of a right angle")
    sine = _analytic("sin")(values, point)
    return number(sine) / number(cosine)


_FUNCTIONS: dict[str, Callable[[list[Scalar], Point], Scalar]] = {
    **{name: _analytic(name) for name in ("sin", "cos", "sinh", "cosh", "tanh", "exp", "arg")},
    "tan": _tangent,
    "arcsin": _analytic("asin"), "arccos": _analytic("acos"), "arctan": _analytic("atan"),
    "arccot": _analytic("acot"), "arcsec": _analytic("asec"), "arccsc": _analytic("acsc"),
    "cot": _reciprocal("tan"), "sec": _reciprocal("cos"), "csc": _reciprocal("sin"), "coth": _reciprocal("tanh"),
    "ln": _logarithm, "log": _logarithm, "logarithm": _logarithm,
    "factorial": _factorial, "double factorial": _double_factorial,
    "Gamma": lambda values, point: _factorial([add(values[0], Fraction(-1))], point),
    "floor": lambda values, point: _rounded(values, False), "ceiling": lambda values, point: _rounded(values, True),
    "gcd": lambda values, point: Fraction(math.gcd(*_whole(values))), "lcm": lambda values, point: Fraction(math.lcm(*_whole(values))),
    "max": lambda values, point: _largest(values, 1), "min": lambda values, point: _largest(values, -1),
    "Re": lambda values, point: MP.re(number(values[0])), "Im": lambda values, point: MP.im(number(values[0])),
}  # fmt: skip

_RULES: dict[str, Callable[[Node, Point], Value]] = {
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
    "root": _root,
    "transpose": _transpose,
    "binomial": _binomial,
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
