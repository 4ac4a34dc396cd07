"""What is not worth a worker: answers that are certainly unequal to a plain number, or beyond the contract's sizes."""

from __future__ import annotations

import math
import re

from rlep.core.types import Status
from rlep.services.verifier.answers import MAX_ANSWER_CHARS
from rlep.services.verifier.exact import rational_of

MAX_DEPTH = 40
"""Deeper nesting of brackets is ``unparsable``."""
_CHEAP_CHARS = 300
"""A plain number of fewer characters is below 10^300."""
_HUGE = 301.0
_ENDLESS = 1e300
"""Stands for every larger logarithm."""

_TOKENS = re.compile(r"\s*(?:(\d+)|(\*\*|\^|!+|\+|\*|\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z]))|([({])|([)}]))")
_TIMES = frozenset({"*", "\\cdot", "\\times"})


def verdict_of(reference: str, answer: str) -> Status | None:
    """``unparsable`` beyond the contract's sizes, ``wrong`` where that is certain, None to let a worker decide."""
    if len(answer) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS or depth_of(answer) > MAX_DEPTH:
        return "unparsable"
    if not any(mark in answer for mark in ("^", "!", "**")) or len(reference) >= _CHEAP_CHARS:
        return None
    if rational_of(reference) is None:
        return None
    bound = magnitude_of(answer)
    return "wrong" if bound is not None and bound > _HUGE else None


def depth_of(text: str) -> int:
    """How deep brackets of any kind are nested."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}" and depth:
            depth -= 1
    return deepest


def magnitude_of(answer: str) -> float | None:
    """A lower bound of log10 of the answer, or None where it is not built from positive integers by + · ^ and ! alone.

    All of these grow with their operands, so bounds from below stay bounds from below; nothing large is computed.
    """
    tokens = _tokenise(answer)
    if tokens is None:
        return None
    try:
        reader = _Magnitude(tokens)
        bound = reader.sum()
    except (ValueError, IndexError):
        return None
    return bound if reader.at == len(tokens) else None


def _tokenise(answer: str) -> list[str] | None:
    tokens: list[str] = []
    position = 0
    stripped = answer.rstrip()
    while position < len(stripped):
        match = _TOKENS.match(stripped, position)
        if match is None or len(tokens) > 400:
            return None
        number, operator, opening, closing = match.groups()
        tokens.append(number or operator or (opening and "(") or (closing and ")") or "")
        position = match.end()
    return tokens


class _Magnitude:
    """Recursive descent over the tokens; every method returns a lower bound of log10 of what it read."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.at = 0

    def sum(self) -> float:
        """``product (+ product)*``; the largest summand bounds the sum."""
        bound = self._product()
        while self._next() == "+":
            self.at += 1
            bound = max(bound, self._product())
        return bound

    def _product(self) -> float:
        bound = self._power()
        while self._next() in _TIMES:
            self.at += 1
            bound = min(bound + self._power(), _ENDLESS)
        return bound

    def _power(self) -> float:
        base = self._operand()
        if self._next() not in ("^", "**"):
            return base
        self.at += 1
        exponent = self._power()
        if base == 0:
            return 0.0
        return min(base * 10**exponent, _ENDLESS) if exponent < 300 else _ENDLESS

    def _operand(self) -> float:
        mark = self._tokens[self.at]
        self.at += 1
        if mark == "(":
            bound = self.sum()
            if self._tokens[self.at] != ")":
                raise ValueError("unbalanced")
            self.at += 1
        elif mark.isdigit() and mark.strip("0"):
            digits = mark.lstrip("0")
            bound = math.log10(int(digits[:15])) + max(0, len(digits) - 15)
        else:
            raise ValueError("not a positive integer")
        while self._next().startswith("!"):
            if len(self._next()) > 2:
                raise ValueError("no plain factorial")
            bound = _factorial(bound) / len(self._next())
            self.at += 1
        return bound

    def _next(self) -> str:
        return self._tokens[self.at] if self.at < len(self._tokens) else ""


def _factorial(bound: float) -> float:
    """``log10 n! >= n log10(n / e)``; half of that bounds the double factorial as ``n!! >= sqrt(n!)``."""
    if bound >= 290:
        return _ENDLESS
    number = 10**bound
    return max(bound, min(number * (bound - math.log10(math.e)), _ENDLESS)) if number > 3 else bound
