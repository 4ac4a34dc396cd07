"""Infinite sums, limits and integrals of functions that can be computed at a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlep.services.verifier.latex.points import MP, Infinite, NoValue, Scalar, is_real

_STEPS = (18, 21)
"""A limit is computed at these powers of ten from its point, which must agree."""
_MOST_TERMS = 300
_QUADRATURE_DIGITS = 20


def series(term: Callable[[int], Scalar], start: int) -> Scalar:
    """An infinite sum whose terms fall at least as fast as a geometric series or as 1/n². Raises NoValue for any other."""
    near, far = abs(term(400)), abs(term(800))
    if far > near / 3 and near > MP.mpf("1e-40"):
        raise NoValue("a series that converges slowly, or not at all")
    values = [_extrapolated(term, start), term(start) + term(start + 1) + _extrapolated(term, start + 2)]
    if abs(values[0] - values[1]) > 1e-15 * max(1, abs(values[0])):
        raise NoValue("a series whose extrapolation does not converge")
    return values[0]


def _extrapolated(term: Callable[[int], Scalar], start: int) -> Scalar:
    """A series by extrapolation, which asks ``MP`` for more digits where it needs them."""
    return MP.nsum(lambda index: term(int(index)), [start, MP.inf], maxterms=_MOST_TERMS)


def limit(function: Callable[[Scalar], Scalar], places: Callable[[int, int], Scalar], signs: Sequence[int]) -> Scalar:
    """The value close to a point from the sides of these signs; it must not change any more.

    ``places(exponent, sign)`` is a place that far towards the point. Raises Infinite where the value grows without bound.
    """
    found = [function(places(exponent, sign)) for sign in signs for exponent in _STEPS]
    if all(abs(value - found[-1]) <= 1e-12 * max(1, abs(found[-1])) for value in found):
        return found[-1]
    grows = all(abs(far) > 2 * abs(close) > 2e9 for close, far in zip(found[::2], found[1::2], strict=True))
    ways = {bool(value > 0) for value in found if is_real(value)}
    if grows and len(ways) == 1:
        raise Infinite(1 if ways == {True} else -1)
    raise NoValue("a limit that does not exist")


def integral(function: Callable[[Scalar], Scalar], ends: Sequence[Scalar]) -> Scalar:
    """A definite integral by quadrature. Raises NoValue where it does not converge."""
    context = MP.clone()
    context.dps = _QUADRATURE_DIGITS
    value, error = context.quad(lambda x: function(MP.mpf(x)), ends, error=True)
    if error > 1e-12:
        raise NoValue("an integral that does not converge")
    return MP.convert(value)
