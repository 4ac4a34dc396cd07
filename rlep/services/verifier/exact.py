"""Plain numbers as exact rationals: the path that decides almost every verdict without a symbolic engine."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from rlep.services.verifier.latex.decimals import rounds

MAX_DIGITS = 4000
"""Longer digit strings are left to the full path, which refuses them; CPython itself stops at 4,300."""

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_WORD = re.compile(r"0\d{3,}", re.ASCII)
"""Digits that are a word, as of a code or a binary number: the zeros in front count."""
_GROUPED = re.compile(r"([+-]?)(\d{1,3}(?:(?:,|\{,\}|\\,|\\!|\\ |[ \u00a0\u2009\u202f])\d{3})+)(\.\d+)?", re.ASCII)
_SEPARATORS = re.compile(r"\{,\}|\\[,! ]|[, \u00a0\u2009\u202f]")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)", re.ASCII)
_RATIO = re.compile(r"([+-]?\d+)\s*/\s*(\d+)", re.ASCII)
_FRAC = re.compile(r"([+-]?)\\[dtc]?frac\s*(?:\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}|(\d)\s*(\d))", re.ASCII)


def rational_of(text: str) -> Fraction | int | None:
    """The exact value of a plain number: integer, thousands groups, decimal, ``a/b`` or ``\\frac``; else None."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(text) > MAX_DIGITS:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if match := _GROUPED.fullmatch(text):
        sign, groups, decimals = match.groups()
        return Fraction(sign + _SEPARATORS.sub("", groups) + (decimals or ""))
    if match := _RATIO.fullmatch(text):
        return _divide(int(match.group(1)), int(match.group(2)))
    if match := _FRAC.fullmatch(text):
        sign, top, bottom, short_top, short_bottom = match.groups()
        value = _divide(int(top or short_top), int(bottom or short_bottom))
        return -value if value is not None and sign == "-" else value
    return None


def _divide(top: int, bottom: int) -> Fraction | None:
    return Fraction(top, bottom) if bottom else None


def decide(reference: str, answer: str) -> Literal["correct", "wrong"] | None:
    """Correct where the strings are identical or both are the same plain number, wrong for two different plain numbers.

    None leaves the pair to the full path.
    """
    if reference == answer:
        return "correct"
    if _WORD.fullmatch(reference) and _INTEGER.fullmatch(answer):
        return "wrong"
    left = rational_of(reference)
    if left is None:
        return None
    right = rational_of(answer)
    if right is None:
        return None
    if left != right and isinstance(left, Fraction) and "." in answer and rounds(left, answer.strip("+- "), right):
        return None  # where it stands for that fraction is the full path's to say
    return "correct" if left == right else "wrong"
