"""Answers that are words: compared as words, never as products of letters."""

from __future__ import annotations

import re

TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|rm|bf)\s*\{([^{}]*)\}")
_APPLIED = re.compile(r".*\\operatorname\s*\{[^{}]*\}\s*[a-zA-Z\\]", re.DOTALL)
"""The name of a function before its operand."""
_PHRASE = re.compile(r"[^\W\d_]+(?:[' \-]+[^\W\d_]+)*")
_WORD_LIKE = re.compile(r"[b-df-hj-np-tv-z][aeiou][b-df-hj-np-tv-z]")
_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*\)?\.?")
_PAIR = re.compile(r"[A-E]{2}")
_EITHER = re.compile(r"(?<![a-zA-Z])or(?![a-zA-Z])")
_RUN = re.compile(r"[A-H]{3,8}")
_CHOICE_WORD = re.compile(r"\A(?:option|choice|answer)s?\s*:?\s*(?=\(?[A-Za-z]\b)", re.IGNORECASE)
_WRITTEN_OUT = re.compile(
    r"\s*(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{\s*(?:\(([A-J])\)|([A-J])\s*[.):])\s*(?:\}|([^{}]*)\})\s*[:.]?\s*(.*)"
    r"|\(([A-J])\)\s+((?:[\d\\$.-]|\\text).*)|(?:\\text\{\s*)?([A-J])(?:\s*\})?\s*[.):]\s*((?:[\d$-]|\\(?:frac|sqrt|text)).*))",
    re.DOTALL,
)
_PLAIN_CONTENT = re.compile(r"(?:[\d\s.,+\-/^{}$%]|\\(?:frac|sqrt|pi|cdot|circ|%|\$)(?![a-zA-Z])|\\text\{[^{}]*\})+")
_OTHER_CHOICE = re.compile(r"(?<![a-zA-Z\\_^])[A-HJ](?![a-zA-Z_^\d])")
_CHOICES = re.compile(r"\s*[,;]\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d{2})\s*([apAP])\.?\s*[mM]\.?\s*")


def phrase_of(latex: str) -> str | None:
    """The words of an answer that is nothing else, case-folded; None for mathematics.

    ``\\text{Yes}``, ``no solution``, ``east``, ``3:00 pm``, words of any script. Outside of ``\\text`` a run of two or three
    letters is a word, in its own case, where it has a capital (``HTH``, ``Amy``) or reads like one (``sun``), else a product of
    variables.
    """
    if _APPLIED.match(latex):
        return None
    bare = TEXT.sub(r" \1 ", latex)
    marked = bare != latex
    if clock := _CLOCK.fullmatch(bare):
        return f"{int(clock.group(1))}:{clock.group(2)} {clock.group(3).lower()}m"
    if _DATE.fullmatch(bare.strip()):
        return bare.strip()
    words = _ARTICLE.sub("", " ".join(bare.strip(" .,!\"'").split()))
    if (listed := _list_of(words, marked=marked)) is not None:
        return listed
    if not _PHRASE.fullmatch(words):
        return None
    longest = max(words.split(), key=len)
    if not marked and words.isascii() and words == longest and 2 <= len(words) <= 3 and words.lower() not in _SHORT:
        return words if not words.islower() or _WORD_LIKE.fullmatch(words) else None
    plain = len(longest) >= 4 or not words.isascii() or longest.lower() in _SHORT
    if not ((marked and len(longest) >= 2) or plain):
        return None
    spelled = words == longest and not (words.islower() or words.isupper() or words.istitle())
    short = words == longest and not plain and not _WORD_LIKE.fullmatch(words.lower())
    return words if spelled or short else _folded(words)


def _folded(words: str) -> str:
    """Words without case, in one of their spellings."""
    plain = words.casefold().replace("-", " ").replace("'", "")
    return _SAME_WORDS.get(plain, plain)


def _list_of(words: str, *, marked: bool) -> str | None:
    """Several words or names in their order, as ``Alice, Bob and Carol``; None for anything else."""
    parts = [_ARTICLE.sub("", part.strip()) for part in _BETWEEN_WORDS.split(words) if part.strip()]
    if len(parts) < 2 or not all(_PHRASE.fullmatch(part) for part in parts):
        return None
    shortest = 2 if marked else 4
    if not all(len(max(part.split(), key=len)) >= shortest or (marked and _ROMAN.fullmatch(part)) for part in parts):
        return None
    return ", ".join(map(_folded, parts))


_ARTICLE = re.compile(r"\A(?:an?|the)\s+(?=\w{3})", re.IGNORECASE)
_ROMAN = re.compile(r"[IVX]+")
_BETWEEN_WORDS = re.compile(r"\s*[,;]\s*(?:and\s+)?|\s+and\s+|\s*&\s*")
_SAME_WORDS = {
    "does not exist": "dne",
    "doesnt exist": "dne",
    "limit does not exist": "dne",
    "divergent": "diverges",
    "convergent": "converges",
    "cant be determined": "cannot be determined",
    "can not be determined": "cannot be determined",
    "not enough information": "cannot be determined",
}
"""Phrases -> the one that stands for them."""
_DENIAL = re.compile(
    r"(?<![a-zA-Z])(?:not|never|false|wrong|incorrect|undefined|indeterminate|infinite|dne|nan|neg|lnot)(?![a-zA-Z])",
    re.IGNORECASE,
)


def denies(answer: str, reference: str) -> bool:
    """Tell whether an answer takes something back that the reference does not: ``\\text{not }x=42``."""
    return bool(_DENIAL.search(answer)) and not _DENIAL.search(reference)


_SHORT = frozenset({"yes", "no", "odd", "all", "both", "red", "one", "two", "six", "ten", "dne", "up"})


MEANINGS = {
    **dict.fromkeys(
        ("no solution", "no solutions", "no real solution", "no real solutions", "no real roots", "no real root"),
        "\\emptyset ",
    ),
    **dict.fromkeys(("empty set", "the empty set"), "\\emptyset "),
    **dict.fromkeys(("all real numbers", "all reals", "the real numbers"), "\\mathbb{R}"),
}
"""Phrases that name a set."""


def same_letters(one: str, other: str) -> bool:
    """Tell whether both are the same letters and indices and nothing else: ``\\text{H}_2\\text{O}`` and ``H_2O``."""
    bare = [_INDEX.sub(r"_\1\2;", "".join(TEXT.sub(r"\1", latex).split())) for latex in (one, other)]
    return bare[0] == bare[1] and _LETTERS.fullmatch(bare[0]) is not None


_INDEX = re.compile(r"_(?:\{(\d{1,3})\}|(\d))")
_LETTERS = re.compile(r"(?:[a-zA-Z]|_\d{1,3};|(?<=[a-zA-Z])-(?=[a-zA-Z])){2,}")


def same_choices(gold: str, target: str) -> bool | None:
    """Tell whether two answers choose the same letters, ``\\textbf{(B)}``, ``B`` or ``\\text{A, C}``; None: one is no choice.

    A single letter from A to E of a reference may come in lower case. Letters that the reference lists
    in alphabetical order may come in any order, and two of A to E may stand side by side.
    """
    wanted, found = _choices_of(gold), _choices_of(target)
    if wanted is None and found is not None and len(found) > 2:
        wanted = _side_by_side(gold)
    if found is None and wanted is not None and len(wanted) > 2:
        found = _side_by_side(target)
    if wanted is None or found is None:
        return None
    if bool(_EITHER.search(gold)) != bool(_EITHER.search(target)):
        return False
    if len(wanted) == len(found) == 1 and wanted[0] in "ABCDE":
        found = [found[0].upper()]
    return wanted == (sorted(found) if wanted == sorted(wanted) else found)


def _side_by_side(latex: str) -> list[str] | None:
    """Three and more letters from A to H without anything between, in the order of the alphabet."""
    letters = TEXT.sub(r"\1", latex).strip(" .{}")
    ordered = bool(_RUN.fullmatch(letters)) and list(letters) == sorted(set(letters))
    return list(letters) if ordered else None


def choice_with_content(latex: str) -> tuple[str, str] | None:
    """``(letter, content)`` of a choice that is written out, as ``\\textbf{(C)}\\ 12``; None for anything else."""
    match = _WRITTEN_OUT.fullmatch(latex)
    if match is None:
        return None
    letter = match[1] or match[2] or match[5] or match[7]
    rest, behind = (match[3] or "").strip(), (match[4] or match[6] or match[8] or "").strip()
    content = f"\\text{{{rest}}} {behind}".strip() if rest else behind
    bare = match[5] or match[7]
    if bare and not _PLAIN_CONTENT.fullmatch(content):
        return None  # as a factor in brackets
    if not content or _OTHER_CHOICE.search(content) or denies(content, ""):
        return None  # as a list of what belongs to several letters, or a letter that is taken back
    return letter, content


def choice_of(latex: str) -> str:
    """The letter of an answer that is one choice from A to J; empty for anything else."""
    letters = _choices_of(latex)
    return letters[0] if letters is not None and len(letters) == 1 and letters[0] in "ABCDEFGHIJ" else ""


def _choices_of(latex: str) -> list[str] | None:
    bare = _CHOICE_WORD.sub("", TEXT.sub(r" \1 ", latex).strip(" .{}")).strip(" .")
    if _PAIR.fullmatch(latex.strip()) and bare[0] != bare[1]:
        return list(bare)
    letters = [part for part in _CHOICES.split(bare) if part]
    matches = [_CHOICE.fullmatch(letter) for letter in letters]
    found = [match.group(1) for match in matches if match is not None]
    if not found or len(found) < len(letters):
        return None
    if len(found) == 1:
        return None if bare in ("e", "i") else found
    return found if all(letter.isupper() for letter in found) else None
