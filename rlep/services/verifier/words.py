"""Answers that are words: compared as words, never as products of letters."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|rm|bf)\s*\{([^{}]*)\}")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z' \-]*")
_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*\)?\.?")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d{2})\s*([apAP])\.?\s*[mM]\.?\s*")
_VOWELS = frozenset("aeiouyAEIOUY")


def phrase_of(latex: str) -> str | None:
    """The words of an answer that is nothing else, case-folded; None for mathematics.

    ``\\text{Yes}``, ``no solution``, ``east``, ``3:00 pm``; a run of up to three letters outside ``\\text`` is a
    product of variables.
    """
    bare = _COMMAND.sub(r" \1 ", latex)
    marked = bare != latex
    if clock := _CLOCK.fullmatch(bare):
        return f"{int(clock.group(1))}:{clock.group(2)} {clock.group(3).lower()}m"
    words = " ".join(bare.strip(" .,!\"'").split())
    if not _PHRASE.fullmatch(words):
        return None
    longest = max(words.split(), key=len)
    plain = len(longest) >= 4 or (len(longest) >= 2 and _VOWELS & set(longest) and longest.lower() in _SHORT)
    if (marked and len(longest) >= 2) or plain:
        return words.casefold().replace("-", " ")
    return None


_SHORT = frozenset({"yes", "no", "odd", "all", "both", "red", "one", "two", "six", "ten", "dne"})


MEANINGS = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions"), "\\emptyset "),
    **dict.fromkeys(("empty set", "the empty set"), "\\emptyset "),
    **dict.fromkeys(("all real numbers", "all reals", "the real numbers"), "\\mathbb{R}"),
}
"""Phrases that name a set."""


def letters_of(latex: str) -> str | None:
    """The letters of an answer that is nothing else, case-folded: ``ABC`` for ``\\text{ABC}``."""
    bare = "".join(_COMMAND.sub(r"\1", latex).split())
    return bare.casefold() if bare.isascii() and bare.isalpha() else None


def choice_of(latex: str) -> str | None:
    """The letter of a multiple-choice answer that is nothing else: ``\\textbf{(B)}``, ``(B)``, ``B``."""
    match = _CHOICE.fullmatch(_COMMAND.sub(r" \1 ", latex).strip())
    return match.group(1) if match else None
