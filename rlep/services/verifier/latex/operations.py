"""Operations on values: exact on fractions, else to 60 digits."""

from __future__ import annotations

from fractions import Fraction

from rlep.services.verifier.latex.points import (
    MP,
    Matrix,
    NoValue,
    OutOfDomain,
    SamplePoint,
    Scalar,
    Value,
    is_real,
    number,
    real,
)

MAX_BITS = 200_000
"""Fractions with more have no value: fewer digits would lose what makes them differ."""
_MAX_MATRIX_POWER = 64
_MAX_MINORS = 6
_MAX_CHOSEN = 5000


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
    """The product of two values; that of a row and a column is a scalar."""
    if isinstance(left, Matrix) and isinstance(right, Matrix):
        if left.shape[1] != right.shape[0]:
            raise NoValue("a product of shapes that do not fit")
        columns = list(zip(*right.rows, strict=True))
        product = Matrix(tuple(tuple(_inner_product(row, column) for column in columns) for row in left.rows))
        return product.rows[0][0] if product.shape == (1, 1) else product
    if isinstance(left, Matrix):
        return Matrix(tuple(tuple(multiply(cell, right) for cell in row) for row in left.rows))
    if isinstance(right, Matrix):
        return multiply(right, left)
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    return number(left) * number(right)


def _inner_product(left: tuple[Scalar, ...], right: tuple[Scalar, ...]) -> Scalar:
    """The sum of the products of two rows."""
    total: Scalar = Fraction(0)
    for one, two in zip(left, right, strict=True):
        total = add(total, multiply(one, two))
    return total


def transposed(matrix: Matrix) -> Matrix:
    """The columns as rows."""
    return Matrix(tuple(zip(*matrix.rows, strict=True)))


def cross(left: Matrix, right: Matrix) -> Matrix:
    """The vector product of two columns of three numbers."""
    if left.shape[0] != 3:
        raise NoValue("a vector product needs three dimensions")
    (a,), (b,), (c,) = left.rows
    (x,), (y,), (z,) = right.rows
    return Matrix(((_minor(b, z, c, y),), (_minor(c, x, a, z),), (_minor(a, y, b, x),)))


def _minor(a: Scalar, b: Scalar, c: Scalar, d: Scalar) -> Scalar:
    """Compute ``ab - cd``."""
    return add(multiply(a, b), multiply(Fraction(-1), multiply(c, d)))


def power(base: Value, exponent: Scalar, point: SamplePoint) -> Value:
    """``base ** exponent``; a root of a negative number is complex, or raises OutOfDomain where only real numbers are wanted."""
    if isinstance(base, Matrix):
        return _matrix_power(base, exponent)
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        count = int(exponent)
        if isinstance(base, Fraction):
            if base == 0 and count <= 0:
                raise NoValue("a power of zero")
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits * abs(count) > MAX_BITS:
                raise NoValue("a power of too many digits")
            return base**count
        return number(base) ** count
    base, exponent = real(number(base)), real(number(exponent))
    if base == 0:
        if is_real(exponent) and exponent > 0:
            return Fraction(0)
        raise NoValue("a power of zero")
    if point.kind != "complex" and is_real(base) and base < 0:
        raise OutOfDomain("a root of a negative number")
    return real(MP.power(base, exponent))


def _matrix_power(base: Matrix, exponent: Scalar) -> Matrix:
    whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    if not whole or base.shape[0] != base.shape[1] or abs(exponent) > _MAX_MATRIX_POWER:
        raise NoValue("a power of a matrix")
    if exponent < 0:
        inverse = MP.matrix([[number(cell) for cell in row] for row in base.rows]) ** -1
        base = Matrix(tuple(map(tuple, inverse.tolist())))
    size = range(base.shape[0])
    total = Matrix(tuple(tuple(Fraction(row == column) for column in size) for row in size))
    for _ in range(abs(int(exponent))):
        total = multiply(total, base)
        total = total if isinstance(total, Matrix) else Matrix(((total,),))
    return total


def root(value: Scalar, index: Scalar, point: SamplePoint) -> Scalar:
    """A root; an odd one of a negative number is negative."""
    if not isinstance(index, Fraction) or index.denominator != 1 or index < 1:
        return power(value, 1 / index, point)
    value = real(value)
    if int(index) % 2 == 1 and is_real(value) and value < 0:
        return multiply(Fraction(-1), power(-value, 1 / index, point))
    exact = _exact_root(value, int(index))
    return exact if exact is not None else power(value, 1 / index, point)


def _exact_root(value: Scalar, index: int) -> Fraction | None:
    """The root of a fraction where it is a fraction; None elsewhere."""
    if not isinstance(value, Fraction) or value < 0 or index > 64:
        return None
    roots = []
    for part in (value.numerator, value.denominator):
        root = int(MP.nint(MP.root(part, index))) if part.bit_length() < 150 else 0
        if root**index != part:
            return None
        roots.append(root)
    return Fraction(roots[0], roots[1])


def determinant(rows: tuple[tuple[Scalar, ...], ...]) -> Scalar:
    """The determinant of square rows, by its first row."""
    if len(rows) == 1:
        return rows[0][0]
    if len(rows) > _MAX_MINORS:
        raise NoValue("a large determinant")
    total: Scalar = Fraction(0)
    for column, cell in enumerate(rows[0]):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        total = add(total, multiply(Fraction((-1) ** column), multiply(cell, determinant(minor))))
    return total


def length(vector: Matrix) -> Scalar:
    """The length of a column."""
    if vector.shape[1] != 1:
        raise NoValue("the norm of a matrix")
    numbers = transposed(vector).rows[0]
    square = _inner_product(numbers, numbers)
    exact = _exact_root(square, 2)
    return exact if exact is not None else MP.sqrt(number(square))


def binomial(top: Scalar, bottom: Scalar) -> Scalar:
    """The binomial coefficient, exact for whole numbers."""
    fractions = isinstance(top, Fraction) and isinstance(bottom, Fraction)
    if fractions and top.denominator == bottom.denominator == 1 and 0 <= bottom <= _MAX_CHOSEN:
        value = Fraction(1)
        for step in range(int(bottom)):
            value = value * (top - step) / (step + 1)
        return value
    return MP.binomial(number(top), number(bottom))
