"""Expressions as trees of operations, and what can be read off a tree without computing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

SET_OPERATIONS = frozenset({"union", "intersection", "difference"})
BINDERS = frozenset({"total", "running product", "integral", "limit"})
"""Operations that have a variable of their own."""
_WORD = re.compile(r"\\text\{(?=[^{}]*[a-z])[^{}]*[a-zA-Z]{2}")
"""A word has a small letter: ``AB`` is a segment, ``RT`` a product."""
_TYPE = re.compile(
    r"\\(?:mathrm|rm|mathit|mathbf|mathsf|boldsymbol|bm) (?:\{ ([^{}]*) \}|([^{} ]+))|\\(max|min)(?![a-zA-Z])"
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and its operands."""

    kind: str
    parts: tuple[Node, ...] = ()
    name: str = ""
    """Of a name, function or bracket; the digits of a decimal; the variable of a sum."""
    value: Fraction = Fraction(0)
    """Of a number."""


def has(node: Node, *kinds: str) -> bool:
    """Tell whether an expression holds an operation of one of these kinds."""
    return node.kind in kinds or any(has(part, *kinds) for part in node.parts)


def all_of(node: Node, kind: str) -> Iterator[Node]:
    """Every operation of this kind in an expression, outer ones first."""
    if node.kind == kind:
        yield node
    for part in node.parts:
        yield from all_of(part, kind)


def unknowns(node: Node) -> set[str]:
    """The names in an expression but for the variables of its sums, integrals and limits."""
    found = {node.name} if node.kind == "name" else set()
    for part in node.parts:
        found |= unknowns(part)
    if node.kind in BINDERS:
        found.discard(node.name.rstrip("+-"))
    return found


def is_closed(node: Node) -> bool:
    """Tell whether an expression has no unknowns; ``i`` counts as the imaginary unit here."""
    return not (unknowns(node) - {"e", "i"}) and not has(node, "apply", "operator", "derivative")


def is_word(name: str) -> bool:
    """Tell whether a name is a word in upright type: a function as ``\\operatorname{erf}``, a quantity or a unit."""
    return _WORD.match(name) is not None


def with_plain_index(name: str) -> str:
    """A name without the type of its index: ``V_{\\mathrm { m a x }}``, ``V_{\\max}`` and ``V_{m a x}`` as ``V_{max}``."""
    letters, mark, index = name.partition("_{")
    plain = _TYPE.sub(lambda match: match[1] or match[2] or match[3], index)
    return letters + mark + re.sub(r"(?<=[a-zA-Z]) (?=[a-zA-Z])", "", plain)


def ungrouped(node: Node) -> Node:
    """The expression without the brackets around it."""
    while node.kind == "group":
        node = node.parts[0]
    return node


def renamed(node: Node, names: dict[str, str]) -> Node:
    """The expression with other names."""
    if not names:
        return node
    name = names.get(node.name, node.name) if node.kind == "name" else node.name
    return replace(node, name=name, parts=tuple(renamed(part, names) for part in node.parts))


def infinity_in(node: Node) -> int | None:
    """The sign of an infinity that is written as one; None for anything else."""
    if node.kind in ("negative", "group"):
        inner = infinity_in(node.parts[0])
        return inner if inner is None or node.kind == "group" else -inner
    return 1 if node.kind == "constant" and node.name == "infty" else None
