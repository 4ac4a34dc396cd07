"""Forms of an answer: its elements, its values under names, both values of ``\\pm``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlep.services.verifier.latex.nodes import Node, has
from rlep.services.verifier.latex.statements import Answer, Item


@dataclass(frozen=True)
class Assignment:
    """Values under names, as in ``x=1, y=2`` or ``(x,y)=(1,2)``."""

    values: dict[str, Item]
    ordered: bool
    """Whether the names stand in a tuple, so that their order counts."""

    def in_order(self) -> list[Item]:
        """The values in the order of the tuple, or of the alphabet."""
        return list(self.values.values()) if self.ordered else [self.values[name] for name in sorted(self.values)]


def opened(node: Node) -> Answer:
    """A tuple or set as its elements."""
    return Answer(node.kind, tuple(Item((part,)) for part in node.parts), brackets=node.name)


def assignment_of(answer: Answer) -> Assignment | None:
    """The values under names that an answer states; None where it states anything else."""
    if answer.form == "one" and set(answer.items[0].relations) == {"="}:
        left, right = answer.items[0].sides[0], answer.items[0].value
        if left is None or not left.kind == right.kind == "tuple" or len(left.parts) != len(right.parts):
            return None
        if any(part.kind != "name" for part in left.parts):
            return None
        pairs = zip(left.parts, right.parts, strict=True)
        return Assignment({part.name: Item((value,)) for part, value in pairs}, ordered=True)
    if answer.form != "list" or answer.joint == "or":
        return None
    found: dict[str, Item] = {}
    for item in answer.items:
        name = letters_of(item.sides[0])
        if set(item.relations) != {"="} or not name:
            return None
        found[name] = Item((item.value,))
    return Assignment(found, ordered=False) if len(found) == len(answer.items) else None


@dataclass(frozen=True)
class Alternatives:
    """Values of one unknown, as in ``x=2 or x=-3``."""

    name: str
    values: tuple[Item, ...]
    counted: bool
    """Whether its indices only count them, as in ``x_1=2, x_2=-3``."""


def alternatives_of(answer: Answer) -> Alternatives | None:
    """The values of one unknown that an answer states; None where it states anything else."""
    sides = [item.sides[0] for item in answer.items]
    if answer.form != "list" or not all(set(item.relations) == {"="} for item in answer.items):
        return None
    if any(side is None or side.kind not in ("name", "tuple") for side in sides):
        return None
    names = {repr(side) for side in sides}
    roots = {side.name.partition("_")[0] for side in sides if side is not None and "_" in side.name}
    counted = (
        len(roots) == 1 and len(names) == len(sides) and all(side is not None and "_" in side.name for side in sides)
    )
    if len(names) > 1 and not counted:
        return None
    first = sides[0]
    assert first is not None
    name = next(iter(roots)) if counted else first.name if first.kind == "name" else repr(first)
    return Alternatives(name, tuple(Item((item.value,)) for item in answer.items), counted)


def letters_of(node: Node | None) -> str:
    """The letters of a name or of a side of a figure, as ``AB``; empty for anything else."""
    if node is None:
        return ""
    if node.kind == "product" and all(map(letters_of, node.parts)):
        return "".join(map(letters_of, node.parts))
    return node.name if node.kind == "name" else ""


def with_both_signs(answer: Answer) -> Answer:
    """An answer with both values of each ``\\pm``; all its signs go together."""
    if not any(map(_has_signs, answer.items)):
        return answer
    items: list[Item] = []
    for item in answer.items:
        for sign in (1, -1) if _has_signs(item) else (1,):
            items.append(replace(item, sides=tuple(side and _signed(side, sign) for side in item.sides)))
    if answer.form == "one":
        return Answer("list", tuple(items), "or")
    return replace(answer, items=tuple(items))


def _has_signs(item: Item) -> bool:
    return any(side is not None and has(side, "either") for side in item.sides)


def _signed(node: Node, sign: int) -> Node:
    """An expression with the upper (1) or lower (-1) sign of each ``\\pm`` and ``\\mp``."""
    if node.kind == "either":
        inner = _signed(node.parts[0], sign)
        return Node("negative", (inner,)) if (sign > 0) == (node.name == "\\mp") else inner
    return replace(node, parts=tuple(_signed(part, sign) for part in node.parts))
