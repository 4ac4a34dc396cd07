"""The full path, for worker processes only: words, units and bases, then what both answers are worth as they are written.

math-verify is asked only about unions, intersections and differences of sets of letters, in the same names.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify.grader import should_treat_as_complex, verify

from rlep.services.verifier import mixed, notation, quantity, words
from rlep.services.verifier.latex import agree, approximate, letters, statements
from rlep.services.verifier.latex.same import same
from rlep.services.verifier.latex.statements import Answer
from rlep.services.verifier.latex.tokens import Token, Unreadable, lex
from rlep.services.verifier.quantity import Quantity

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

Found = Literal["correct", "wrong", "unparsable"]

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])")
_INDEX = r"_(?:\w|\\[a-zA-Z]+(?!\s*\{)|(?:\\[a-zA-Z]+)?\s*\{(?:[^{}]|\{[^{}]*\})*\})"
_NAME = re.compile(rf"(?:(?:\\Delta\s*)?(?:[a-zA-Z]|\\(?!(?:infty|pi)(?![a-zA-Z]))[a-zA-Z]+)\s*(?:{_INDEX})?)?")


@dataclass(frozen=True)
class Reading:
    """An answer as the full path sees it."""

    latex: str
    """In plain LaTeX."""
    quantity: Quantity
    phrase: str | None
    """Its words, where it is nothing else."""

    @cached_property
    def answer(self) -> Answer | None:
        """Its statements; None where the grammar does not read it."""
        try:
            return statements.read(self.quantity.body)
        except (Unreadable, RecursionError):
            return None


def judge(reference: str, answer: str) -> Found:
    """Compare an answer with the reference. Raises MemoryError and RecursionError; may never return."""
    gold, *_ = read_reference(reference)
    target, *others = read(answer)
    found = compare(gold, target)
    if others and not approximate.holds([side.answer for side in (target, *others)]):
        found = "wrong"
    elif others and found == "wrong" and not approximate.is_rational(target.answer):
        found = compare(gold, others[-1])
    return found


@lru_cache(maxsize=256)
def read_reference(text: str) -> tuple[Reading, ...]:
    """A reference, read once per process."""
    return read(text)


def read(text: str) -> tuple[Reading, ...]:
    """The sides of ``≈`` in an answer, one as a rule; what is approximated comes first."""
    sides = [side.strip() for side in _APPROXIMATELY.split(notation.to_latex(text))]
    named = len(sides) > 1 and _NAME.fullmatch(sides[0]) is not None
    return tuple(_read_side(side) for side in (sides[1:] if named else sides))


def _read_side(latex: str) -> Reading:
    """Take an answer apart."""
    parts = quantity.read(latex)
    phrase = words.phrase_of(latex) if parts.unit is None else None
    if phrase in words.MEANINGS:
        return _read_side(words.MEANINGS[phrase])
    return Reading(latex, parts, phrase)


def compare(gold: Reading, target: Reading) -> Found:
    """The contract's order: texts, words, bases and units, then values."""
    if _spelled(gold.latex) == _spelled(target.latex):
        return "correct"
    if target.quantity.base is not None or gold.quantity.base is not None:
        alike = gold.quantity.body.upper().lstrip("0") == target.quantity.body.upper().lstrip("0")
        return "correct" if alike and not quantity.disagree(gold.quantity, target.quantity) else "wrong"
    if (chosen := words.same_choices(gold.latex, target.latex)) is not None:
        return "correct" if chosen else "wrong"
    if (found := _compare_written_out(gold, target)) is not None:
        return found
    if gold.phrase is not None or target.phrase is not None:
        alike = gold.phrase == target.phrase or words.same_letters(gold.latex, target.latex)
        return "correct" if alike else "wrong"
    if (ordered := mixed.same_mixed(gold.latex, target.latex)) is not None and not _are_quantities(gold, target):
        return "correct" if ordered else "wrong"
    if words.same_letters(gold.latex, target.latex):
        return "correct"
    if target.answer is None:
        return "unparsable"
    if (
        gold.answer is None
        or words.denies(target.latex, gold.latex)
        or quantity.disagree(gold.quantity, target.quantity)
    ):
        return "wrong"
    try:
        return "correct" if same(gold.answer, target.answer) else "wrong"
    except RecursionError:
        return "unparsable"
    except agree.Unknown:
        return "correct" if _engine_agrees(gold, target) else "wrong"


def _compare_written_out(gold: Reading, target: Reading) -> Found | None:
    """Compare where a choice stands with its content, as ``(C) 12``: both count where both are given; None elsewhere."""
    wanted, given = words.choice_with_content(gold.latex), words.choice_with_content(target.latex)
    if wanted is None and given is None:
        return None
    one = wanted or _alone(gold.latex)
    two = given or _alone(target.latex)
    if one[0] and two[0] and one[0] != two[0]:
        return "wrong"
    if one[1] and two[1]:
        return compare(_read_side(one[1]), _read_side(two[1]))
    return "correct" if one[0] and two[0] else "wrong"


def _are_quantities(*sides: Reading) -> bool:
    """Tell whether all sides are numbers with their units, which are compared as such."""
    return all(side.quantity.unit is not None and not words.TEXT.search(side.quantity.body) for side in sides)


def _alone(latex: str) -> tuple[str, str]:
    """``(letter, "")`` of a choice, ``("", content)`` of anything else."""
    letter = words.choice_of(latex)
    return (letter, "") if letter else ("", latex)


def _spelled(latex: str) -> list[Token] | str:
    """The tokens of an answer, among which spaces do not count but between digits; its text where it has no tokens."""
    try:
        return lex(latex)
    except Unreadable:
        return latex


def _engine_agrees(gold: Reading, target: Reading) -> bool:
    """Ask math-verify about two expressions in the same names, in which it loses nothing that the grammar reads."""
    if gold.answer is None or target.answer is None or not letters.may_ask_engine(gold.answer, target.answer):
        return False
    one, two = parse(gold.quantity.body), parse(target.quantity.body)
    if one is None or two is None:
        return False
    return bool(verify(one, two, timeout_seconds=None, allow_set_relation_comp=True))


def parse(text: str) -> Any | None:
    """math-verify's form of plain LaTeX, or None where it has none."""
    try:
        latex = normalize_latex(text, config=_NORMALISATION)
        return latex2sympy(
            latex, is_real=not should_treat_as_complex(latex), convert_degrees=False, normalization_config=None
        )
    except (AttributeError, TypeError, ValueError, IndexError, KeyError, NotImplementedError):
        return None
    except Exception as error:
        if type(error) is not Exception:
            raise
        return None
