"""Forms of an answer: its elements, its values under names, both values of ``\\pm``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rlep.services.verifier.latex.nodes import Node, has, is_closed, renamed, ungrouped, unknowns, with_plain_index
from rlep.services.verifier.latex.statements import Answer, Item, opened

_POINT = re.compile(r"[ADFGHIJKLMOPQRSTVWXYZ]'?(?:_\{\d\})?")
_UNIT_VECTORS = "ijk"
_UNIT_VECTOR = re.compile(r"\\(?:mathbf|vec|hat|boldsymbol|bm) (?:[ijk]|\\[ij]math)")


LETTERS = frozenset(Node("name", (), letter) for letter in "ei")
"""Letters that are numbers, but before ``=``."""


@dataclass(frozen=True)
class Assignment:
    """Values under names, as in ``x=1, y=2`` or ``(x,y)=(1,2)``."""

    values: dict[str, Item]
    ordered: bool
    """The names stand in a tuple, so that their order counts."""

    def in_order(self) -> list[Item]:
        """The values in the order of the tuple, or of the alphabet where it has an order of the names."""
        if self.ordered or not all(name[0].isalpha() for name in self.values):
            return list(self.values.values())
        return [self.values[name] for name in sorted(self.values)]


def equates_number(item: Item) -> bool:
    """Tell whether a chain sets a number equal to a last side with unknowns: ``49=n^2`` says what n is, and names no value."""
    numbers = [side for side in item.sides[:-1] if side is not None and is_closed(side) and side not in LETTERS]
    return set(item.relations) == {"="} and not is_closed(item.value) and bool(numbers)


def assignment_of(answer: Answer) -> Assignment | None:
    """The values under names that an answer states; None where it states anything else."""
    if answer.form == "one" and set(answer.items[0].relations) == {"="}:
        if (chain := _chain_of_names(answer.items[0])) is not None:
            return chain
        left, right = answer.items[0].sides[0], answer.items[0].value
        if left is None or not left.kind == right.kind == "tuple" or len(left.parts) != len(right.parts):
            return None
        if any(part.kind != "name" for part in left.parts):
            return None
        return _assignment([part.name for part in left.parts], right.parts, ordered=True)
    if answer.form != "list" or answer.joint == "or":
        return None
    names = [letters_of(item.sides[0]) for item in answer.items]
    if not all(names) or any(set(item.relations) != {"="} or equates_number(item) for item in answer.items):
        return None
    return _assignment(names, [item.value for item in answer.items], ordered=False)


def _assignment(names: Sequence[str], values: Sequence[Node], *, ordered: bool) -> Assignment | None:
    """Values under names, each of which stands once; None for others. Type in an index counts where it tells names apart."""
    plain = list(map(with_plain_index, names))
    found = dict(zip(plain if len(set(plain)) == len(names) else names, values, strict=True))
    items = {name: Item((value,)) for name, value in found.items()}
    return Assignment(items, ordered) if len(items) == len(names) else None


def _chain_of_names(item: Item) -> Assignment | None:
    """The value that a chain gives to each of several names, as in ``x=y=3``."""
    names = [side.name for side in item.sides[:-1] if side is not None and side.kind == "name"]
    if len(names) < max(2, len(item.sides) - 1) or not is_closed(item.value):
        return None
    return _assignment(names, [item.value] * len(names), ordered=False)


@dataclass(frozen=True)
class Alternatives:
    """Values of one unknown, as in ``x=2 or x=-3``."""

    name: str
    values: tuple[Item, ...]
    counted: bool
    """Its indices only count them, as in ``x_1=2, x_2=-3``."""


def alternatives_of(answer: Answer) -> Alternatives | None:
    """The values of one unknown that an answer states; None where it states anything else."""
    sides = [item.sides[0] for item in answer.items]
    if answer.form != "list" or not all(set(item.relations) == {"="} for item in answer.items):
        return None
    if any(item.modulus or equates_number(item) for item in answer.items):
        return None
    if any(side is None or side.kind not in ("name", "tuple") for side in sides):
        return None
    names = {repr(side) for side in sides}
    roots = {side.name.partition("_")[0] for side in sides if side is not None and "_" in side.name}
    counted = len(roots) == 1 and len(names) == len(sides) and all(map(_is_counted, sides))
    if len(names) > 1 and not counted:
        return None
    first = sides[0]
    assert first is not None
    name = next(iter(roots)) if counted else first.name if first.kind == "name" else repr(first)
    return Alternatives(name, tuple(Item((item.value,)) for item in answer.items), counted)


def _is_counted(side: Node | None) -> bool:
    """Tell whether a name has a number or a letter that counts as its index."""
    return side is not None and re.fullmatch(r".+_\{?[\dn]\}?", side.name) is not None


def in_one_form(gold: Answer, target: Answer) -> tuple[Answer, Answer]:
    """Both answers, each as a tuple or list where the other is one: ``P(1,2)`` is a point, ``x\\in\\{1,2\\}`` two values of x."""
    gold, target = _spread(gold), _spread(target)
    gold, target = _with_points(gold, target), _with_points(target, gold)
    gold, target = _coordinates(gold, target), _coordinates(target, gold)
    gold, target = _as_vector(gold, target), _as_vector(target, gold)
    return _as_matrix(gold, target), _as_matrix(target, gold)


def _spread(answer: Answer) -> Answer:
    """The members of a set of which a name is said to be one, as values of that name."""
    if answer.form != "one":
        return answer
    (item,) = answer.items
    left = item.sides[0]
    if item.relations != ("in",) or item.value.kind != "set" or len(item.value.parts) < 2:
        return answer
    if left is None or left.kind != "name":
        return answer
    return Answer("list", tuple(Item((left, part), ("=",)) for part in item.value.parts), "or")


def _with_points(answer: Answer, other: Answer) -> Answer:
    """Points with their names, as ``P(1,2)``: ``P=(1,2)`` where the other answer has such equations, ``(1,2)`` beside tuples."""
    named = any(item.relations == ("=",) for item in other.items)
    tuples = other.form == "tuple" or any(not item.relations and item.value.kind == "tuple" for item in other.items)
    several = len({item.value.parts[0] for item in answer.items if item.value.parts}) == len(answer.items) > 1
    points_only = all(not item.relations and _is_point(item.value, several) for item in answer.items)
    if answer.form not in ("one", "list") or not (named or tuples) or not points_only:
        return answer
    points = [(item.value.parts[0], Node("tuple", item.value.parts[1:], "()")) for item in answer.items]
    items = tuple(Item((name, point), ("=",)) if named else Item((point,)) for name, point in points)
    return opened(items[0].value) if answer.form == "one" and not named else replace(answer, items=items)


def _is_point(node: Node, several: bool) -> bool:
    """Tell whether this is a capital with numbers in a bracket behind it, and by custom no distribution and no count."""
    if node.kind != "apply" or len(node.parts) < 3:
        return False
    if not (_POINT.fullmatch(node.parts[0].name) or (several and node.parts[0].name in ("B", "C", "E", "N"))):
        return False
    return all(map(is_closed, node.parts[1:]))


def _coordinates(answer: Answer, other: Answer) -> Answer:
    """The coordinates of a sum of unit vectors, where the other answer is a tuple."""
    if answer.form != "one" or answer.items[0].relations or other.form != "tuple":
        return answer
    node = answer.items[0].value
    node = _components(node, Node("tuple", tuple(item.value for item in other.items), "()"))
    return opened(node) if node.kind == "tuple" else answer


def _as_vector(answer: Answer, other: Answer) -> Answer:
    """A tuple as one value where the other answer is one that is made of tuples, as ``\\frac{1}{2}(1,3)``."""
    node = other.items[0].value if other.form == "one" and not other.items[0].relations else None
    if answer.form != "tuple" or answer.brackets != "()" or node is None or not has(node, "tuple"):
        return answer
    return Answer("one", (Item((Node("tuple", tuple(item.value for item in answer.items), "()"),)),))


def _as_matrix(answer: Answer, other: Answer) -> Answer:
    """``[[1,2],[3,4]]`` as a matrix where the other answer is one."""
    if other.form != "one" or other.items[0].value.kind != "matrix" or answer.form != "tuple":
        return answer
    node = Node("tuple", tuple(item.value for item in answer.items), answer.brackets)
    return Answer("one", (Item((node,)),))


def as_tuples(gold: Node, target: Node) -> tuple[Node, Node]:
    """Both values: a sum of unit vectors as a tuple where the other is one, ``(1,2)^T`` and ``[[1],[2]]`` as matrices."""
    gold, target = _matrix(gold), _matrix(target)
    if "matrix" in (gold.kind, target.kind):
        gold, target = _rows(gold), _rows(target)
    gold, target = _with_unit_vectors(gold), _with_unit_vectors(target)
    return _components(gold, target), _components(target, gold)


def _matrix(node: Node) -> Node:
    """A transposed tuple as a column; anything else with such parts as columns."""
    transposed = node.kind == "transpose" or (node.kind == "power" and node.parts[1] == Node("name", (), "T"))
    if transposed and node.parts[0].kind == "tuple":
        return Node("matrix", tuple(Node("row", (part,)) for part in node.parts[0].parts))
    return replace(node, parts=tuple(map(_matrix, node.parts))) if node.parts else node


def _rows(node: Node) -> Node:
    """``[[1,2],[3,4]]`` as a matrix."""
    rows = [ungrouped(part) if part.kind == "group" and part.name != "[]" else part for part in node.parts]
    if node.kind != "tuple" or node.name != "[]" or any(row.kind != "tuple" or row.name != "[]" for row in rows):
        return node
    return (
        Node("matrix", tuple(Node("row", row.parts) for row in rows))
        if len({len(r.parts) for r in rows}) == 1
        else node
    )


def _components(node: Node, other: Node) -> Node:
    """A sum of the unit vectors i, j and k as a tuple, where the other value is one."""
    names = unknowns(node)
    units = {name: _UNIT_VECTORS.index(name.removesuffix("math")[-1]) for name in names if _UNIT_VECTOR.fullmatch(name)}
    if other.kind != "tuple" or not units or max(units.values()) >= len(other.parts) or not _combines(node, units):
        return node
    return Node("tuple", tuple(_component(node, units, index) for index in range(len(other.parts))), "()")


def _combines(node: Node, units: dict[str, int]) -> bool:
    """Tell whether an expression is a sum of numbers times unit vectors."""
    inner = ungrouped(node)
    if inner.kind == "name":
        return inner.name in units
    if inner.kind in ("sum", "negative"):
        return all(_combines(part, units) for part in inner.parts)
    with_units = [part for part in inner.parts if unknowns(part) & units.keys()]
    scaled = inner.kind in ("product", "dot") or (inner.kind == "quotient" and with_units == [inner.parts[0]])
    return scaled and len(with_units) == 1 and _combines(with_units[0], units)


def _with_unit_vectors(node: Node) -> Node:
    """An expression with the vectors i, j and k in one font."""
    units = {
        name: f"\\mathbf {name.removesuffix('math')[-1]}" for name in unknowns(node) if _UNIT_VECTOR.fullmatch(name)
    }
    return renamed(node, units) if len(set(units.values())) == len(units) else node


def _component(node: Node, units: dict[str, int], index: int) -> Node:
    if node.kind == "name" and node.name in units:
        return Node("number", value=Fraction(int(units[node.name] == index)))
    return replace(node, parts=tuple(_component(part, units, index) for part in node.parts))


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
        return replace(answer, form="list", items=tuple(items), joint="or")
    return replace(answer, items=tuple(items))


def _has_signs(item: Item) -> bool:
    return any(side is not None and has(side, "either") for side in item.sides)


def _signed(node: Node, sign: int) -> Node:
    """An expression with the upper (1) or lower (-1) sign of each ``\\pm`` and ``\\mp``."""
    if node.kind == "either":
        inner = _signed(node.parts[0], sign)
        return Node("negative", (inner,)) if (sign > 0) == (node.name == "\\mp") else inner
    return replace(node, parts=tuple(_signed(part, sign) for part in node.parts))
