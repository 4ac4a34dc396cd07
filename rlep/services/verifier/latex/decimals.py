"""Decimals that stand for a fraction which they only round."""

from __future__ import annotations

from fractions import Fraction

MIN_ROUNDED = 7
"""A decimal of fewer significant digits never stands for a fraction that it only rounds."""


def rounds(exact: Fraction, written: str, value: Fraction | int) -> bool:
    """Tell whether a decimal, as written without a sign, is the rounded value of a fraction whose own decimals never end.

    The signs of the fraction and of the decimal's ``value`` do not matter.
    """
    if "." not in written or len(written.replace(".", "").lstrip("0")) < MIN_ROUNDED:
        return False
    rest = exact.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    places = len(written.partition(".")[2])
    return rest > 1 and abs(abs(exact) - abs(Fraction(value))) * 10**places * 2 <= 1
