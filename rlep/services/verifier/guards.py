"""Exact checks behind the symbolic engine, in worker processes only.

``stands`` turns an equality that the engine found into ``wrong`` where exact arithmetic or more digits refute it; it
never turns anything into ``correct``. Nothing here formats an expression, other than single numbers.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Relational

from rlep.services.verifier import equations

_UNREAD = re.compile(r"'|\\prime(?![a-zA-Z])|\\[lc]?dots(?![a-zA-Z])|\.\.\.|(?<![\^{\d])\d+[)} ]*_")
_BETWEEN = re.compile(r"[,;]|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}")
_DENIAL = re.compile(
    r"(?<![a-zA-Z])(?:not|never|false|wrong|incorrect|undefined|indeterminate|infinite|dne|nan|neg|lnot)(?![a-zA-Z])",
    re.IGNORECASE,
)


def stands(reference: str, answer: str, gold: Any, target: Any) -> bool:
    """Whether ``gold == target``, as found by the engine, stands."""
    if not equations.consistent(target):
        return False
    if _kind_of_brackets(reference, answer) or _nested(reference, gold) != _nested(answer, target):
        return False
    if _repeats_itself(reference, answer, target) or _repeats_itself(answer, reference, gold):
        return False
    if _DENIAL.search(answer) and not _DENIAL.search(reference):
        return False
    if _unread(reference, answer) != _unread(answer, reference):
        return False
    return equations.agree(equations.right_side(gold, target), equations.right_side(target, gold))


def _unread(latex: str, other: str) -> set[str]:
    """The marks in an answer that the engine passes over: primes, dots, the subscript of a number (as ``_``)."""
    value = latex if "=" in other else latex.rpartition("=")[2]
    found = {match.group() for match in _UNREAD.finditer(value)}
    return {"_" if mark.endswith("_") else "'" if mark in ("'", "\\prime") else "..." for mark in found}


def _kind_of_brackets(reference: str, answer: str) -> bool:
    """Whether one side is a set in braces and the other an ordered tuple or interval in parentheses or brackets."""
    kinds = {_brackets(reference), _brackets(answer)}
    return kinds == {"set", "tuple"}


def _repeats_itself(reference: str, answer: str, target: Any) -> bool:
    """Whether the answer lists a value more often than the reference: ``2, 2`` is not 2. Braces make a set of it."""
    if not isinstance(target, sympy.FiniteSet) or "\\{" in answer or any(mark in answer for mark in "([|"):
        return False
    listed = len(_BETWEEN.findall(answer))
    return listed + 1 > len(target.args) and listed > len(_BETWEEN.findall(reference))


def _nested(latex: str, expression: Any) -> bool:
    """Whether this is a set of sets; braces that only group do not make one."""
    if not isinstance(expression, sympy.FiniteSet) or latex.count("\\{") < 2:
        return False
    return any(isinstance(item, sympy.Set) for item in expression.args)


def _brackets(latex: str) -> str | None:
    latex = latex.strip()
    if latex.startswith("\\{") and latex.endswith("\\}"):
        return "set"
    if latex[:1] in "([" and latex[-1:] in ")]" and latex[:1] and "," in latex and _closes_last(latex):
        return "tuple"
    return None


def _closes_last(latex: str) -> bool:
    depth = 0
    for position, character in enumerate(latex):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return position == len(latex) - 1
    return False


def is_relation(expression: Any) -> bool:
    """Whether this is an inequality or equation, or a chain of them."""
    return isinstance(expression, (Relational, And))


def differ_in_unknown(gold: Any, target: Any) -> bool:
    """Whether these are inequalities about different unknowns: ``x > 2`` and ``y > 2``."""
    if not (_inequality(gold) and _inequality(target)):
        return False
    names = [{str(symbol.name).casefold() for symbol in side.free_symbols} for side in (gold, target)]
    return names[0] != names[1]


def _inequality(expression: Any) -> bool:
    """Whether this is an inequality, or several of which one holds."""
    if isinstance(expression, sympy.FiniteSet):
        return bool(expression.args) and all(map(_inequality, expression.args))
    return is_relation(expression) and not expression.has(sympy.Eq)
