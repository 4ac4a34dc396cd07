"""Expressions that are infinite, and those with a part that has no finite value."""

from __future__ import annotations

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.nodes import BINDERS, SET_OPERATIONS, Node, infinity_in, is_closed
from rlep.services.verifier.latex.points import Infinite, NoValue, SamplePoint

_UNDEFINED = frozenset({"undefined", "indeterminate", "infinite", "infinity", "nan", "dne", "none"})
_COLLECTIONS = SET_OPERATIONS | {"tuple", "set", "row", "ratio", "cases", "case"}


def infinity_of(node: Node, point: SamplePoint) -> int | None:
    """The sign of the infinity that an expression is or tends to; None for any other."""
    if (written := infinity_in(node)) is not None:
        return written
    if not is_closed(node):
        return None  # it may be either, or neither
    try:
        evaluate(node, point)
    except Infinite as found:
        return found.sign
    except NoValue:
        return None
    return None


def undefined(node: Node) -> bool:
    """Tell whether a part without unknowns has no finite value."""
    if node.kind in _COLLECTIONS:
        return any(undefined(part) for part in node.parts if infinity_in(part) is None)  # an interval's end may be one
    if node.kind == "quotient" and is_closed(node.parts[1]) and _is_zero(node.parts[1]):
        return True
    if node.kind == "name" and node.name.removeprefix("\\text{").rstrip("}").casefold() in _UNDEFINED:
        return True
    if is_closed(node):
        return not has_value(node, SamplePoint("undefined", imaginary=True))
    return node.kind not in BINDERS and any(map(undefined, node.parts))


def has_value(node: Node, point: SamplePoint) -> bool:
    """Tell whether an expression has a value at a point."""
    try:
        evaluate(node, point)
    except NoValue:
        return False
    return True


def _is_zero(node: Node) -> bool:
    """Tell whether an expression is zero or has no value."""
    try:
        return bool(evaluate(node, SamplePoint("zero", imaginary=True)) == 0)
    except NoValue:
        return True
