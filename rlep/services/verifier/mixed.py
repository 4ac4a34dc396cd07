"""Words with numbers, as ``2 hours 30 minutes`` or ``Team 1 beat Team 2``: the same words and numbers in the same order."""

from __future__ import annotations

import re

from rlep.services.verifier.quantity import known_unit
from rlep.services.verifier.words import TEXT

_PIECE = re.compile(r"(?P<word>[^\W\d_]+)|(?P<number>\d+(?:[.:]\d+)*)|(?P<mark>[()\[\]/→?!-])|(?P<skip>[\s,;:&'.]+)")
_TOGETHER = re.compile(r"[^\W\d_]\s*\d|\d\s*[^\W\d_]")
_BEHIND_WORD = re.compile(r"(?<![^\W\d_])(?!(?:and|or)\b)(?:[^\W\d_]{2,}\s*|[^\W\d_])\d")
_BEFORE_NUMBER = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf)\s*\{\s*(?!(?:and|or)\b)[^\W\d_][^{}\\]*\}\s*\d")
_LABELS = re.compile(r"(?:^|[\s,;])\((?:[a-h]|i{1,3}|iv)\).*[\s,;]\((?:[a-h]|i{1,3}|iv)\)")
"""Two labels of parts, as ``(a) 3, (b) 5``."""
_FOLDED = 3
"""Shorter words keep their case, as ``CO`` in ``CO2``, and so does a word that touches a number."""


def same_mixed(gold: str, target: str) -> bool | None:
    """Tell whether two answers are the same words and numbers in their order; None where one is anything else."""
    one, two = _pieces(gold), _pieces(target)
    if one is None or two is None or not (_is_text(gold) or _is_text(target)):
        return None
    return one == two


def _is_text(latex: str) -> bool:
    """Tell whether it is no product: letters and digits together in ``\\text``, a number behind a word, labels of parts."""
    bare = TEXT.sub(r" \1 ", latex)
    if any(_TOGETHER.search(found[1]) for found in TEXT.finditer(latex)) or _BEFORE_NUMBER.search(latex):
        return True
    return bool(_BEHIND_WORD.search(bare) or _LABELS.search(bare))


def _pieces(latex: str) -> list[str] | None:
    """The words and numbers of plain LaTeX in their order, without commas and *and*; None for anything else."""
    bare = TEXT.sub(r" \1 ", latex)
    pieces: list[str] = []
    position, kinds = 0, set()
    while match := _PIECE.match(bare, position):
        position = match.end()
        kind, piece = match.lastgroup or "", match.group()
        if kind == "skip" or (kind == "word" and piece == "and"):
            continue
        kinds.add(kind)
        beside = bare[match.start() - 1 : match.start()] + bare[position : position + 1]
        touches = any(map(str.isdigit, beside))
        behind_number = kind == "word" and bool(pieces) and pieces[-1][0].isdigit()
        if behind_number and (unit := known_unit(piece)):  # ``ft`` and ``feet``
            pieces.append(unit)
        else:
            pieces.append(piece if touches or len(piece) < _FOLDED else piece.casefold())
    return pieces if position == len(bare) and {"word", "number"} <= kinds else None
