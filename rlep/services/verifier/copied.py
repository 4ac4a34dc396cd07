"""Answers that are copied from their question: what was to be worked out has the right value by itself."""

from __future__ import annotations

import re

from rlep.services.verifier.notation import SYMBOLS

_OPERATIONS = r"int|iint|oint|sum|prod|lim|gcd|lcm|det|lfloor|lceil|mod"
_OPERATION = re.compile(
    rf"\\(?:{_OPERATIONS})(?![a-zA-Z])|\\begin\s*\{{[vV]matrix\}}"
    r"|\\frac\s*\{\s*(?:d|\\partial)(?![a-zA-Z])[^{}]*\}\s*\{\s*(?:d|\\partial)"
)
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|leq|geq|leqslant|geqslant|lt|gt)(?![a-zA-Z])")
_UNSOLVED = re.compile(r"\^|\\frac|[|(]")
"""More than a name, where it stands with a letter."""
_MEMBERS = re.compile(r"\\\{\s*[a-zA-Z]\s*(?:\\in[^|:]*)?(?:\||:|\\mid(?![a-zA-Z]))")
"""The beginning of a set that is given by a condition."""
_SPELLINGS = (
    (re.compile(r"\\[bp]mod(?![a-zA-Z])"), r"\\mod"),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(rf"\\(?:operatorname|mathrm|text)\s*\{{\s*({_OPERATIONS})\s*\}}"), r"\\\1"),
    (re.compile(r"(?<![a-zA-Z\\])(gcd|lcm|det|lim)(?=\s*\()"), r"\\\1"),
)
_CHARACTERS = str.maketrans({character: SYMBOLS[character] for character in "∫∑∏⌊⌈≤≥"})
_SPACING = re.compile(r"[\s$]+|\\(?:[,;:! ]|(?:left|right|displaystyle|limits)(?![a-zA-Z]))")


def is_copied(answer: str, question: str, reference: str) -> bool:
    """Tell whether an answer is a part of the question that is still to be worked out, and the reference is nothing such.

    ``\\int_0^1 x\\,dx`` is 1/2; copied from *Find …*, it would be paid for nothing.
    """
    known = _tasks(_spelled(reference))
    parts = {_spelled(answer), _spelled(answer.rpartition("=")[2])}
    asked = [part for part in parts if not _tasks(part) <= known]
    if not asked:
        return False
    stated = _unspaced(_spelled(question))
    return any(_unspaced(part) in stated for part in asked)


def _spelled(text: str) -> str:
    """The text with one name for each operation."""
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def _tasks(text: str) -> set[str]:
    found = set(_OPERATION.findall(text))
    sides = _INEQUALITY.split(_MEMBERS.sub("", text))
    if len(sides) > 1 and any(_UNSOLVED.search(side) and re.search(r"(?<!\\)\b[a-zA-Z]", side) for side in sides):
        found.add("inequality")
    return found


def _unspaced(text: str) -> str:
    """The text without what changes its look alone."""
    return _SPACING.sub("", text)
