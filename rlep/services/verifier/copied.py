"""Answers that are copied from their question: what was to be worked out has the right value by itself."""

from __future__ import annotations

import re

_OPERATION = re.compile(
    r"\\(?:int|iint|oint|sum|prod|lim|gcd|lcm|det|lfloor|lceil|bmod|pmod|mod)(?![a-zA-Z])|\\begin\s*\{[vV]matrix\}"
    r"|\\[dt]?frac\s*\{\s*(?:d|\\partial)(?![a-zA-Z])[^{}]*\}\s*\{\s*(?:d|\\partial)"
)
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt)(?![a-zA-Z])")
_UNSOLVED = re.compile(r"\^|\\[dt]?frac|[|(]")
"""More than a name and its bounds."""
_SPACING = re.compile(r"[\s$]+|\\(?:[,;:! ]|(?:left|right|displaystyle|limits)(?![a-zA-Z]))|(?<=\\)[dt](?=frac)")


def is_copied(answer: str, question: str, reference: str) -> bool:
    """Tell whether an answer is a part of the question that is still to be worked out, and the reference is nothing such.

    ``\\int_0^1 x\\,dx`` is 1/2; copied from *Find …*, it would be paid for nothing.
    """
    parts = {answer, answer.rpartition("=")[2]}
    asked = [part for part in parts if not _tasks(part) <= _tasks(reference)]
    return bool(asked) and any(_unspaced(part) in _unspaced(question) for part in asked)


def _tasks(text: str) -> set[str]:
    found = set(_OPERATION.findall(text))
    if _INEQUALITY.search(text) and _UNSOLVED.search(text):
        found.add("inequality")
    return found


def _unspaced(text: str) -> str:
    """The text without what changes its look alone; ``\\dfrac`` and ``\\frac`` are one."""
    return _SPACING.sub("", text)
