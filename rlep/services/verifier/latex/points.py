"""Values, and the points at which expressions are computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath

MP = mpmath.mp.clone()
"""A context of its own: the symbolic engine changes the precision of the shared one."""
MP.dps = 60

Scalar = Any
"""``Fraction``, or a real or complex number of ``MP``."""
Value = Any
"""A scalar or a ``Matrix``."""


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


@dataclass(frozen=True)
class SamplePoint:
    """Values of the names while an expression is computed."""

    seed: str
    """Equal seeds draw equal values."""
    kind: str = "complex"
    """Real results of ``positive`` numbers or of numbers of ``both`` signs, or ``complex`` results of positive numbers."""
    integers: frozenset[str] = frozenset()
    """Names that stand for whole numbers above 1."""
    whole: bool = False
    """All other names stand for small whole numbers too, where rounding and ``0`` make a difference."""
    scale: int = 1
    """Factor of the other names: of a maximum, small numbers show one side only."""
    complexes: frozenset[str] = frozenset()
    """Names that stand for complex numbers."""
    matrices: frozenset[str] = frozenset()
    vectors: frozenset[str] = frozenset()
    imaginary: bool = False
    """``i`` is the imaginary unit."""
    bound: Mapping[str, Scalar] = field(default_factory=dict)
    """Values of the variables of sums and integrals."""
    rough: list[str] = field(default_factory=list)
    """Filled with each operation that was computed to fewer digits."""


def draw(point: SamplePoint, *address: str) -> Fraction:
    """A number in (0, 4) that only the address decides, with a small denominator."""
    digest = hashlib.blake2b("|".join((point.seed, *address)).encode(), digest_size=8).digest()
    top = int.from_bytes(digest, "big")
    low = Fraction(1, 23) if top & 1 else Fraction(1)
    return low + Fraction((top >> 1) % 6007, 6007) * (Fraction(20, 23) if top & 1 else 3)


def indexed(name: str, point: SamplePoint) -> str:
    """A name with the values of the variables of sums in its index: ``x_{i}`` as ``x_{3}``."""
    if not point.bound or "_{" not in name:
        return name
    root, _, index = name.partition("_{")
    words = index.rstrip("}").split()
    if not point.bound.keys() & set(words):
        return name
    values = [point.bound.get(word, word) for word in words]
    if not all(isinstance(value, str) or (isinstance(value, Fraction) and value.denominator == 1) for value in values):
        raise NoValue("an index that is no whole number")
    if len(values) == 3 and values[1] in ("+", "-") and all(str(value).isdigit() for value in values[::2]):
        left, right = (int(str(value)) for value in values[::2])
        values = [left + right if values[1] == "+" else left - right]
    return f"{root}_{{{' '.join(map(str, values))}}}"


def tiny() -> Scalar:
    """A number that is smaller, beside one of ordinary size, is an error of rounding at the present digits."""
    return MP.mpf(10) ** (10 - MP.dps)


def number(value: Scalar) -> Scalar:
    """A fraction as a number of 60 digits; anything else as it is."""
    return MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def real(value: Scalar) -> Scalar:
    """A number whose imaginary part is only rounding."""
    if isinstance(value, MP.mpc) and abs(value.imag) <= tiny() * max(1, abs(value.real)):
        return value.real
    return value


def is_real(value: Scalar) -> bool:
    """Tell whether a number has no imaginary part but for rounding."""
    return not isinstance(real(value), MP.mpc)


def shown(value: Value) -> str:
    """A value as text to 30 digits, to compare."""
    if isinstance(value, Matrix):
        return ";".join(",".join(shown(cell) for cell in row) for row in value.rows)
    return str(MP.nstr(real(number(value)), 30))
