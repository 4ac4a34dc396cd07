"""The full path, for worker processes only: plain LaTeX in, math-verify between, exact guards behind.

Nothing here formats a symbolic object: ``str`` of a parsed tower can take for ever, and only a kill stops it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify.grader import should_treat_as_complex, verify

from rlep.services.verifier import arithmetic, equations, guards, notation, quantity, words
from rlep.services.verifier.quantity import Quantity

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

Found = Literal["correct", "wrong", "unparsable"]

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_FUNCTION_LIKE = re.compile(r"(?<![a-zA-Z\\])([a-zA-Z])\s*\(")
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])|\\sim(?:eq)?(?![a-zA-Z])")
_NAME = re.compile(r"[a-zA-Z]?|\\(?!infty)[a-zA-Z]+")
_NO_VALUE = re.compile(
    r"\\infty|\{\s*\}(?!\s*[_^])|(?:/|\\[bp]?mod(?![a-zA-Z])|\\frac\s*(?:\{[^{}]*\}|\d))\s*\{?\s*0(?![\d.])"
)
"""An infinity, an empty operand or a division by zero, as it is written."""
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\[a-zA-Z]+)")
_NAMING = re.compile(r"[^\W\d_]|\d\s*,\s*-?[\d\\]")
_UNREADABLE = (AttributeError, sympy.ShapeError)
"""What the engine raises for some names, as ``\\max f``, and for a product of two columns."""
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])\s*")
_SPACES = re.compile(r"(?<![a-zA-Z0-9])\s+|\s+(?![a-zA-Z0-9])")
_NAMED = re.compile(r"([^=<>]*[^=<>\s])\s*=\s*([^=<>]+)")
_OR = re.compile(r"\\(?:text|mathrm|mbox)\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])")


@dataclass(frozen=True)
class Reading:
    """An answer as the full path sees it."""

    latex: str
    """In plain LaTeX."""
    quantity: Quantity
    phrase: str | None
    """Its words, where it is nothing else."""

    @cached_property
    def expression(self) -> Any | None:
        """Its symbolic form; None for words, and where the engine cannot read it."""
        return _expression_of(self.quantity.body) if self.phrase is None else None


def judge(reference: str, answer: str) -> tuple[Found, str | None]:
    """``(status, answer)``. Raises MemoryError and the engine's own failures; may never return."""
    gold, *_ = read_reference(reference)
    target, *others = read(answer)
    found = compare(gold, target)
    if others and not equations.approximate([target.expression, *(other.expression for other in others)]):
        found = "wrong"
    elif others and found == "wrong" and arithmetic.exact_value(target.expression) is None:
        found = compare(gold, others[-1])
    return found, answer


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


def _expression_of(body: str) -> Any | None:
    """The symbolic form; of ``name = value`` that of the value, where the engine cannot read the name."""
    failure: Exception | None = None
    try:
        if (expression := parse(_with_both_signs(body))) is not None:
            return expression
    except _UNREADABLE as error:
        failure = error
    if (match := _NAMED.fullmatch(body)) and not _is_read(match.group(1)):
        return parse(match.group(2)) if _is_name(match.group(1)) else None
    if failure is not None:
        raise failure
    return None


def _is_read(name: str) -> bool:
    try:
        return parse(name) is not None
    except _UNREADABLE:
        return False


def _is_name(text: str) -> bool:
    """Whether unreadable text may name a value: it has a letter or a tuple, and no undefined or infinite part."""
    return bool(_NAMING.search(text)) and not _NO_VALUE.search(_SUBSCRIPT.sub("", text))


def _with_both_signs(body: str) -> str:
    """``\\frac{1\\pm a}{2}`` as ``\\frac{1+a}{2}, \\frac{1-a}{2}``; the engine reads the sign only outside of brackets."""
    if body.count("\\pm") != 1 or "\\mp" in body or "," in body or "\\{" in body:
        return body
    name, equals, value = body.rpartition("=")
    upper, lower = (name + equals + _PLUS_MINUS.sub(sign, value) for sign in "+-")
    return f"{upper}, {lower}"


def compare(gold: Reading, target: Reading) -> Found:
    """The contract's order: words, then values, then what stands around them."""
    gold, target = _in_order(gold, target), _in_order(target, gold)
    if _without_spaces(gold.latex) == _without_spaces(target.latex):
        return "correct"
    if gold.phrase is not None or target.phrase is not None:
        letters = words.letters_of(gold.latex)
        same = gold.phrase == target.phrase or (letters is not None and letters == words.letters_of(target.latex))
        return "correct" if same else "wrong"
    choice = words.choice_of(gold.latex)
    if choice is not None and choice == words.choice_of(target.latex):
        return "correct"
    if target.quantity.base is not None or gold.quantity.base is not None:
        same = gold.quantity.body.upper().lstrip("0") == target.quantity.body.upper().lstrip("0")
        return "correct" if same and not quantity.disagree(gold.quantity, target.quantity) else "wrong"
    if target.expression is None:
        return "unparsable"
    if gold.expression is None or quantity.disagree(gold.quantity, target.quantity):
        return "wrong"
    return "correct" if _equal(gold, target) else "wrong"


def _in_order(reading: Reading, other: Reading) -> Reading:
    """``y=2,x=1`` as ``(1,2)`` where the other side does not name its values: the engine would compare sets."""
    values, others = quantity.assignments_of(reading.quantity.body), quantity.assignments_of(other.quantity.body)
    if values is None or others is not None:
        return reading
    return _read_side(f"({','.join(values[name] for name in sorted(values))})")


def _without_spaces(latex: str) -> str:
    """Spaces dropped but for one between two letters or digits."""
    return _SPACES.sub("", " ".join(latex.split()))


def _equal(gold: Reading, target: Reading) -> bool:
    left, right = gold.quantity.body, target.quantity.body
    if guards.differ_in_unknown(gold.expression, target.expression):
        return False
    if verify(gold.expression, target.expression, timeout_seconds=None, allow_set_relation_comp=True):
        if guards.is_relation(gold.expression) != guards.is_relation(target.expression):
            wanted, found = _solution_set(gold), _solution_set(target)
            if wanted is not None and found is not None:
                return _same_set(wanted, found)
        return guards.stands(left, right, gold.expression, target.expression)
    return equations.consistent(target.expression) and _missed(gold, target)


def _missed(gold: Reading, target: Reading) -> bool:
    """Whether two answers are equal in a way the engine does not see; every way is exact."""
    one, two = arithmetic.exact_value(gold.expression), arithmetic.exact_value(target.expression)
    if one is not None and two is not None:
        return one == two
    if _flipped(gold.expression, target.expression) or _as_sets(gold, target):
        return True
    if _equal_complex(gold.expression, target.expression) or _equal_as_written(gold, target):
        return True
    return _equal_products(gold.quantity.body, target.quantity.body)


def _equal_as_written(gold: Reading, target: Reading) -> bool:
    """A lone letter (``x`` and ``x\\cdot 1``), and decimal exponents as the fractions they are (``10^{1.5}``)."""
    left, right = gold.expression, target.expression
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return False
    decimals = any(power.exp.has(sympy.Float) for side in (left, right) for power in side.atoms(sympy.Pow))
    if not decimals and isinstance(left, sympy.Symbol) == isinstance(right, sympy.Symbol):
        return False
    left, right = arithmetic.with_exact_decimals(left).doit(), arithmetic.with_exact_decimals(right).doit()
    same = bool(sympy.simplify(left - right).is_zero)
    return same and guards.stands(gold.quantity.body, target.quantity.body, left, right)


def _flipped(gold: Any, target: Any) -> bool:
    """``42 = x`` for 42."""
    if not (isinstance(target, sympy.Eq) and isinstance(target.rhs, sympy.Symbol)) or guards.is_relation(gold):
        return False
    value, wanted = arithmetic.exact_value(target.lhs), arithmetic.exact_value(gold)
    return value is not None and value == wanted


def _as_sets(gold: Reading, target: Reading) -> bool:
    """An inequality in one unknown, or several joined by ``or``, for an interval or a union."""
    wanted = _solution_set(gold)
    found = _solution_set(target)
    return wanted is not None and found is not None and _same_set(wanted, found)


def _same_set(one: Any, other: Any) -> bool:
    return bool(one == other) or one.symmetric_difference(other) is sympy.S.EmptySet


def _solution_set(reading: Reading) -> Any | None:
    parts = [parse(part.strip(" ,")) for part in _OR.split(reading.quantity.body)]
    sets = [_real_set(part) for part in parts]
    return None if None in sets else sympy.Union(*sets)


def _real_set(expression: Any) -> Any | None:
    if isinstance(expression, (sympy.Interval, sympy.Union, sympy.Complement)):
        return arithmetic.with_exact_decimals(expression)
    if isinstance(expression, sympy.FiniteSet) or not guards.is_relation(expression):
        return None
    if len(expression.free_symbols) != 1 or expression.has(sympy.Eq):
        return None
    try:
        return arithmetic.with_exact_decimals(expression).as_set()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None


def _equal_complex(gold: Any, target: Any) -> bool:
    """``i`` as the imaginary unit: ``|3+4i|``, ``i^2``, ``e^{i\\pi}``."""
    gold, target = equations.last_side(gold), equations.last_side(target)
    if not (isinstance(gold, sympy.Expr) and isinstance(target, sympy.Expr)):
        return False
    names = gold.free_symbols | target.free_symbols
    if not any(name.name == "i" for name in names):
        return False
    both = all(any(name.name == "i" for name in side.free_symbols) for side in (gold, target))
    if not both and not all(name.name in ("i", "z") for name in names):
        return False
    values = {name: sympy.I if name.name == "i" else sympy.Symbol(name.name, real=True) for name in names}
    left, right = gold.subs(values).doit(), target.subs(values).doit()
    return bool(sympy.simplify(sympy.expand_complex(left - right)).is_zero) and guards.stands("", "", left, right)


def _equal_products(gold: str, target: str) -> bool:
    """A letter before a bracket as a factor, ``k(2)`` as ``2k``, where the engine reads a function."""
    if "=" in gold or "=" in target:
        return False
    rewritten = [_FUNCTION_LIKE.sub(r"\1\\cdot (", text) for text in (gold, target)]
    if rewritten == [gold, target]:
        return False
    left, right = parse(rewritten[0]), parse(rewritten[1])
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return False
    return bool(verify(left, right, timeout_seconds=None)) and guards.stands(gold, target, left, right)


def parse(text: str) -> Any | None:
    """The symbolic form of plain LaTeX, or None where its grammar has no such thing. Raises the engine's own failures."""
    try:
        latex = normalize_latex(text, config=_NORMALISATION)
        return latex2sympy(
            latex, is_real=not should_treat_as_complex(latex), convert_degrees=False, normalization_config=None
        )
    except Exception as error:
        if type(error) is not Exception:
            raise
        return None
