"""Whether two answers say the same, by what they are worth where their names have values; nothing is simplified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from rlep.services.verifier.exact import rounds
from rlep.services.verifier.latex.statements import INEQUALITIES, Answer, Item
from rlep.services.verifier.latex.syntax import Node
from rlep.services.verifier.latex.values import MP, Infinite, Matrix, NoValue, OutOfDomain, Point, Scalar, Value, evaluate, infinity_of, number

_FUNCTION_LETTERS = frozenset({"f", "F", "P", "E", "\\phi", "\\psi", "\\mathbb E", "\\mathbb P", "\\mathrm E"})
"""Letters that are functions by custom where a bracket follows them."""
_VECTORS = ("\\mathbf ", "\\vec ", "\\boldsymbol ", "\\bm ", "\\overrightarrow ", "\\hat ")
_FONT = ("\\mathbf ", "\\boldsymbol ", "\\bm ", "\\mathit ", "\\mathsf ", "\\mathrm ", "\\mathtt ", "\\mathnormal ", "\\pmb ")
_SAME = MP.mpf("1e-40")
_ROUGH = MP.mpf("1e-11")
_DECIMAL = MP.mpf("1e-6")


class Unknown(Exception):  # noqa: N818 - no error: these answers cannot be compared by their values
    """Neither equal nor different can be shown."""


@dataclass(frozen=True)
class Names:
    """How the letters of two expressions are read together."""

    closed: bool
    point: Point
    may_multiply: frozenset[str]
    renamed: dict[str, str]


def same(gold: Answer, target: Answer) -> bool:
    """Whether they say the same. Raises Unknown where neither can be shown."""
    if not all(map(consistent, target.items)):
        return False
    if "cycles" in (gold.form, target.form):
        return gold == target
    if (found := _assigned(gold, target)) is not None:
        return found
    from rlep.services.verifier.latex.regions import same_region

    if (found := same_region(gold, target)) is not None:
        return found
    gold, target = _expanded(gold), _expanded(target)
    forms = {gold.form, target.form}
    if forms == {"one"}:
        return same_item(gold.items[0], target.items[0])
    if "one" in forms:
        return _one_with_many(gold, target)
    if "tuple" in forms:
        plain = all(answer.brackets in ("", "()") for answer in (gold, target)) or gold.brackets == target.brackets
        return plain and "set" not in forms and _in_order(gold.items, target.items)
    if gold.form == target.form == "list" and gold.joint != target.joint and "or" in (gold.joint, target.joint):
        if any(set(item.relations) & INEQUALITIES for item in (*gold.items, *target.items)):
            return False
    if "set" in forms:
        return _matched(_distinct(gold.items), _distinct(target.items))
    return _matched(gold.items, target.items)


def _one_with_many(gold: Answer, target: Answer) -> bool:
    """A chain that ends in a tuple or set, as ``(x,y)=(1,2)`` or ``x\\in\\{1,2\\}``, against its elements."""
    one, many = (gold, target) if gold.form == "one" else (target, gold)
    item = one.items[0]
    if item.relations and set(item.relations) <= {"=", "in"} and item.value.kind in ("tuple", "set"):
        opened = _open(item.value)
        if item.relations == ("in",) and opened.form != "set":
            return False
        return same(opened, many) if one is gold else same(many, opened)
    if not item.relations and item.value.kind in ("union", "intersection", "difference"):
        raise Unknown
    return False


def _open(node: Node) -> Answer:
    return Answer(node.kind, tuple(Item((part,)) for part in node.parts), brackets=node.name)


def _in_order(gold: Sequence[Item], target: Sequence[Item]) -> bool:
    return len(gold) == len(target) and all(same_item(one, two) for one, two in zip(gold, target, strict=True))


def _matched(gold: Sequence[Item], target: Sequence[Item]) -> bool:
    """Whether the items are the same in some order; equality is transitive, so the first match is as good as any."""
    if len(gold) != len(target):
        return False
    left = list(target)
    for item in gold:
        found = next((other for other in left if same_item(item, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _distinct(items: Sequence[Item]) -> list[Item]:
    kept: list[Item] = []
    for item in items:
        if not any(same_item(item, other) for other in kept):
            kept.append(item)
    return kept


def _expanded(answer: Answer) -> Answer:
    """With both values of each ``\\pm``; all its signs go together."""
    if not any(side is not None and has(side, "either") for item in answer.items for side in item.sides):
        return answer
    items: list[Item] = []
    for item in answer.items:
        signs = (1, -1) if any(side is not None and has(side, "either") for side in item.sides) else (1,)
        items += [replace(item, sides=tuple(side and _signed(side, sign) for side in item.sides)) for sign in signs]
    if answer.form == "one":
        items = [Item((item.value,)) if set(item.relations) == {"="} else item for item in items]
        return Answer("list", tuple(items), "or")
    return replace(answer, items=tuple(items))


def _signed(node: Node, sign: int) -> Node:
    if node.kind == "either":
        negative = (sign > 0) == (node.name == "\\mp")
        inner = _signed(node.parts[0], sign)
        return Node("negative", (inner,)) if negative else inner
    return replace(node, parts=tuple(_signed(part, sign) for part in node.parts))


def has(node: Node, kind: str) -> bool:
    """Whether an expression holds an operation of this kind."""
    return node.kind == kind or any(has(part, kind) for part in node.parts)


def _assignments(answer: Answer) -> tuple[dict[str, Node], bool] | None:
    """``({name: value}, ordered)`` of ``x=1, y=2`` or ``(x,y)=(1,2)``."""
    if answer.form == "one" and set(answer.items[0].relations) == {"="}:
        left, right = answer.items[0].sides[0], answer.items[0].value
        if left is not None and left.kind == right.kind == "tuple" and len(left.parts) == len(right.parts):
            if all(part.kind == "name" for part in left.parts):
                return {part.name: value for part, value in zip(left.parts, right.parts, strict=True)}, True
    if answer.form != "list" or answer.joint == "or":
        return None
    found: dict[str, Node] = {}
    for item in answer.items:
        name = _letters(item.sides[0])
        if set(item.relations) != {"="} or not name:
            return None
        found[name] = item.value
    return (found, False) if len(found) == len(answer.items) else None


def _letters(node: Node | None) -> str:
    """The letters of a name or of a side of a figure, as ``AB``; empty for anything else."""
    if node is None or node.kind == "name":
        return node.name if node is not None else ""
    return "".join(map(_letters, node.parts)) if node.kind == "product" and all(map(_letters, node.parts)) else ""


def _assigned(gold: Answer, target: Answer) -> bool | None:
    """Values under names against values under names or in order; None where neither side has names."""
    one, two = _assignments(gold), _assignments(target)
    if one is not None and two is not None:
        return one[0].keys() == two[0].keys() and all(same_item(Item((one[0][name],)), Item((two[0][name],))) for name in one[0])
    named, plain = (one, target) if one is not None else (two, gold)
    if named is None or plain.form not in ("tuple", "list") or any(item.relations for item in plain.items):
        return None
    values, ordered = named
    items = {name: Item((value,)) for name, value in values.items()}
    in_order = list(items.values()) if ordered else [items[name] for name in sorted(items)]
    if one is None:  # the reference has no names
        return _in_order(plain.items, in_order) or (plain.form == "list" and _matched(plain.items, in_order))
    return _in_order(in_order, plain.items) or _in_order(list(items.values()), plain.items)


def consistent(item: Item) -> bool:
    """Whether a chain of ``=`` holds: sides without unknowns are finite and agree, no other has an undefined part."""
    if set(item.relations) != {"="}:
        return True
    ends = infinity_of(item.value, Point("chain")) is not None
    known: list[Node] = []
    for side in item.sides:
        if side is None:
            continue
        if is_closed(side):
            known.append(side)
        elif not ends and undefined(side):
            return False
    try:
        return all(_same_closed(left, right, ends) for left, right in pairwise(known)) and (ends or not any(map(undefined, known)))
    except Unknown:
        return False


def _same_closed(left: Node, right: Node, ends: bool) -> bool:
    if ends:
        return infinity_of(left, Point("chain")) == infinity_of(right, Point("chain"))
    return same_value(left, right)


def is_closed(node: Node) -> bool:
    """Whether an expression has no unknowns; ``i`` counts as the imaginary unit here."""
    return not (unknowns(node) - {"e", "i"}) and not any(has(node, kind) for kind in ("apply", "operator", "derivative"))


def undefined(node: Node) -> bool:
    """Whether a part without unknowns has no finite value."""
    if node.kind in ("tuple", "set", "union", "intersection", "difference", "row"):
        return any(map(undefined, node.parts))
    if node.kind == "quotient" and is_closed(node.parts[1]) and _is_zero(node.parts[1]):
        return True
    if node.kind == "name" and node.name.removeprefix("\\text{").rstrip("}").casefold() in _UNDEFINED:
        return True
    if is_closed(node):
        try:
            evaluate(node, Point("undefined", imaginary=True))
        except NoValue:
            return True
        return False
    if node.kind in ("limit", "total", "running product", "integral"):
        return False
    return any(map(undefined, node.parts))


_UNDEFINED = frozenset({"undefined", "indeterminate", "infinite", "infinity", "nan", "dne", "none"})


def _is_zero(node: Node) -> bool:
    try:
        return bool(evaluate(node, Point("zero", imaginary=True)) == 0)
    except NoValue:
        return True


def unknowns(node: Node) -> set[str]:
    """The names in an expression but for the variables of its sums and integrals."""
    found = {node.name} if node.kind == "name" else set()
    for part in node.parts:
        found |= unknowns(part)
    if node.kind in ("total", "running product", "integral", "limit"):
        found.discard(node.name.rstrip("+-"))
    return found


def same_item(gold: Item, target: Item) -> bool:
    """Whether two statements say the same. Raises Unknown."""
    if gold.modulus.strip("() ") != target.modulus.strip("() "):
        return False
    equations = [set(item.relations) == {"="} for item in (gold, target)]
    if all(equations):
        return _same_equation(gold, target)
    if not gold.relations and not target.relations:
        return same_value(gold.value, target.value)
    if not gold.relations and equations[1]:
        return _same_side(gold.value, target)
    if not target.relations and equations[0]:
        left = gold.sides[0]
        if left is None or left.kind in _NAMES or _letters(left) or _is_ratio(left) or (left.kind == "function" and left.name not in ("ln", "log")):
            return same_value(gold.value, target.value)
        if gold.value.kind in _NAMES and left is not None and is_closed(left):
            return same_value(left, target.value)
        return False
    if gold.relations and target.relations:
        return _same_relations(gold, target)
    return False


def _is_ratio(node: Node) -> bool:
    return node.kind == "quotient" and all(map(_letters, node.parts))


_NAMES = frozenset({"name", "apply", "derivative", "absolute", "norm", "tuple", "operator"})
"""What may stand on the left of ``=`` as the name of the value on the right."""


def _same_side(gold: Node, target: Item) -> bool:
    """A value against a chain: its last side counts, or its first where the last is a name, as in ``42 = x``."""
    first, last = target.sides[0], target.value
    if last.kind == "name" and first is not None and is_closed(first):
        return same_value(gold, first)
    return same_value(gold, last)


def _same_equation(gold: Item, target: Item) -> bool:
    (left, right), (one, two) = (gold.sides[0], gold.value), (target.sides[0], target.value)
    if left is None or one is None:
        if left is None and one is None:
            raise Unknown
        return False
    if left == one:
        return same_value(right, two)
    if any(node.kind in ("tuple", "set") for node in (left, right, one, two)):
        return same_value(left, one) and same_value(right, two)
    return _proportional(_minus(left, right), _minus(one, two), positive=False)


def _minus(left: Node, right: Node) -> Node:
    return Node("sum", (left, Node("negative", (right,))))


_FLIPPED = {">": "<", ">=": "<="}


def _pairs(item: Item) -> list[tuple[str, Node, Node]]:
    pairs = []
    for (left, right), relation in zip(pairwise(item.sides), item.relations, strict=True):
        if left is None or right is None:
            raise Unknown
        flip = relation in _FLIPPED
        pairs.append((_FLIPPED.get(relation, relation), right if flip else left, left if flip else right))
    return pairs


def _same_relations(gold: Item, target: Item) -> bool:
    one, two = _pairs(gold), _pairs(target)
    if len(one) != len(two):
        return False
    for pair in one:
        found = next((other for other in two if _same_pair(pair, other)), None)
        if found is None:
            return False
        two.remove(found)
    return True


def _same_pair(one: tuple[str, Node, Node], two: tuple[str, Node, Node]) -> bool:
    if one[0] != two[0]:
        return False
    if one[0] in ("<", "<=", "!="):
        return _proportional(_minus(one[2], one[1]), _minus(two[2], two[1]), positive=one[0] != "!=")
    return same_value(one[1], two[1]) and same_value(one[2], two[2])


def same_value(gold: Node, target: Node) -> bool:
    """Whether two values are equal wherever they are defined. Raises Unknown."""
    while gold.kind == "group":
        gold = gold.parts[0]
    while target.kind == "group":
        target = target.parts[0]
    if gold == target:
        return True
    shapes = [node.kind if node.kind in ("tuple", "set") else "" for node in (gold, target)]
    if shapes[0] == shapes[1] != "" or "set" in shapes:
        return shapes[0] == shapes[1] and same(_open(gold), _open(target))
    if any(node.kind in ("union", "intersection", "difference") for node in (gold, target)):
        if gold.kind != target.kind:
            raise Unknown
        forward = all(same_value(one, two) for one, two in zip(gold.parts, target.parts, strict=True))
        swapped = gold.kind != "difference" and same_value(gold.parts[0], target.parts[1]) and same_value(gold.parts[1], target.parts[0])
        return forward or swapped
    endless = infinity_of(gold, Point("infinity")), infinity_of(target, Point("infinity"))
    if endless != (None, None):
        return endless[0] == endless[1]
    return any(_agree(one, two, names, _close(one, two)) for one, two, names in _readings(gold, target))


def _proportional(gold: Node, target: Node, *, positive: bool) -> bool:
    """Whether one is the other times a number that is not zero."""
    for one, two, names in _readings(gold, target):
        ratios: list[Scalar] = []

        def proportional(left: Value, right: Value, names: Names = names, ratios: list[Scalar] = ratios) -> bool:
            return _add_ratios(left, right, ratios, positive)

        if _agree(one, two, replace_closed(names), proportional) and ratios:
            return True
    return False


def replace_closed(names: Names) -> Names:
    """The same letters, at several points even where there are none."""
    return replace(names, closed=False)


def _add_ratios(left: Value, right: Value, ratios: list[Scalar], positive: bool) -> bool:
    cells = list(zip(_cells(left), _cells(right), strict=False))
    if len(_cells(left)) != len(_cells(right)):
        return False
    for one, two in cells:
        if one == 0 and two == 0:
            continue
        if one == 0 or two == 0:
            return False
        ratio = one / two if isinstance(one, Fraction) and isinstance(two, Fraction) else number(one) / number(two)
        if positive and not (not isinstance(ratio, MP.mpc) and ratio > 0):
            return False
        if ratios and abs(number(ratio) - number(ratios[0])) > _SAME * abs(number(ratio)):
            return False
        ratios.append(ratio)
    return True


def _cells(value: Value) -> list[Scalar]:
    return [cell for row in value.rows for cell in row] if isinstance(value, Matrix) else [value]


def _readings(gold: Node, target: Node) -> Iterator[tuple[Node, Node, Names]]:
    """Both expressions with the letters before brackets as functions, then, where that may be, as factors."""
    names = _names_of(gold, target)
    one, two = (_renamed(node, names.renamed) for node in (gold, target))
    yield one, two, names
    if names.may_multiply:
        yield one, two, replace(names, point=replace(names.point, factors=names.may_multiply))


def _names_of(gold: Node, target: Node) -> Names:
    sides = [unknowns(gold), unknowns(target)]
    renamed = _renaming(gold, target, sides)
    together = {renamed.get(name, name) for name in sides[0] | sides[1]}
    applied = list(_applications(gold)) + list(_applications(target))
    heads = {renamed.get(name, name) for name, _ in applied}
    imaginary = "i" in together and (all("i" in side for side in sides) or together - {"e"} <= {"i", "z"} or not together - {"e", "i"})
    matrices = _matrix_letters(gold, target)
    vectors = frozenset(name for name in together if name.startswith(_VECTORS)) - matrices
    point = Point(
        "",
        integers=frozenset(_whole_names(gold) | _whole_names(target)),
        matrices=matrices,
        vectors=vectors,
        imaginary=imaginary,
    )
    closed = not (together - {"e"} - ({"i"} if imaginary else set())) and not heads and not _opaque(gold) and not _opaque(target)
    bare = _bare(gold) | _bare(target)
    may = frozenset(name for name in heads if _may_multiply(name, [node for head, node in applied if renamed.get(head, head) == name], bare))
    return Names(closed, point, may, renamed)


def _opaque(node: Node) -> bool:
    return any(has(node, kind) for kind in ("operator", "derivative"))


def _may_multiply(name: str, arguments: list[Node], bare: set[str]) -> bool:
    """Whether a letter before a bracket may be a factor: it also stands alone, or a sum is in the bracket."""
    sums = all(argument.kind == "sum" for argument in arguments)
    if "'" in name or name in ("f", "F"):
        return False
    if name in _FUNCTION_LETTERS:
        return sums and name in bare
    return sums or name in bare


def _applications(node: Node) -> Iterator[tuple[str, Node]]:
    if node.kind == "apply":
        head = node.parts[0]
        name = head.parts[0].name if head.kind == "power" else head.name
        yield name, node.parts[1] if len(node.parts) == 2 else Node("tuple")
    for part in node.parts:
        yield from _applications(part)


def _bare(node: Node) -> set[str]:
    """The names that stand without a bracket behind them."""
    if node.kind == "name":
        return {node.name}
    parts = node.parts
    if node.kind == "apply":
        head = node.parts[0]
        parts = (*(head.parts[1:] if head.kind == "power" else ()), *node.parts[1:])
    return set().union(*map(_bare, parts)) if parts else set()


def _whole_names(node: Node) -> set[str]:
    """The names that stand for whole numbers: in the exponent of a negative number, in bounds, under ``mod`` and ``gcd``."""
    found: set[str] = set()
    if node.kind == "power":
        base = node.parts[0]
        while base.kind == "group":
            base = base.parts[0]
        if base.kind == "negative" and is_closed(base):
            found |= unknowns(node.parts[1])
    if node.kind in ("total", "running product"):
        found |= unknowns(node.parts[0]) | unknowns(node.parts[1])
    if node.kind == "modulo" or (node.kind == "function" and node.name in ("gcd", "lcm", "double factorial")):
        found |= unknowns(node)
    return found.union(*(map(_whole_names, node.parts))) - {"e"} if node.parts else found


def _matrix_letters(gold: Node, target: Node) -> frozenset[str]:
    """Capital letters where one is transposed or inverted, or where one side tells ``AB`` from ``BA``."""
    transposed = any(_transposes(node) for node in (gold, target))
    if not transposed and not any(_tells_order(node) for node in (gold, target)):
        return frozenset()
    names = unknowns(gold) | unknowns(target)
    letters = {name for name in names if len(name.split(" ")[-1]) == 1 and name[-1:].isupper() and not name.startswith("\\vec")}
    return frozenset(letters - {"T"})


def _transposes(node: Node) -> bool:
    if node.kind == "transpose":
        return True
    if node.kind == "power" and _of_matrices(node.parts[0]):
        exponent = node.parts[1]
        if exponent in (Node("name", (), "T"), Node("negative", (Node("number", value=Fraction(1)),))):
            return True
    return any(map(_transposes, node.parts))


def _of_matrices(node: Node) -> bool:
    """Whether capital letters alone make this up."""
    if node.kind == "name":
        return len(node.name.split(" ")[-1]) == 1 and node.name[-1:].isupper()
    return node.kind in ("group", "product", "sum", "power", "dot") and bool(node.parts) and all(map(_of_matrices, node.parts[:1] if node.kind == "power" else node.parts))


def _tells_order(node: Node) -> bool:
    products = [tuple(part.name for part in found.parts) for found in _all(node, "product") if all(map(_of_matrices, found.parts))]
    return any(one != two and sorted(one) == sorted(two) for one in products for two in products)


def _all(node: Node, kind: str) -> Iterator[Node]:
    if node.kind == kind:
        yield node
    for part in node.parts:
        yield from _all(part, kind)


def _renaming(gold: Node, target: Node, sides: list[set[str]]) -> dict[str, str]:
    """Other spellings of one letter, where no side uses both: bold or upright type, ``I`` for ``i``, ``c`` for a constant ``C``."""
    renamed: dict[str, str] = {}
    for one, two in (sides, sides[::-1]):
        if "i" in one and "I" in two and "I" not in one and "i" not in two and not (one | two) - {"i", "I", "e"}:
            renamed["I"] = "i"
        if "C" in one and "c" in two and "c" not in one and "C" not in two and all(_adds(node, "Cc") for node in (gold, target)):
            renamed["c"] = "C"
    ordered = any(has(node, kind) for node in (gold, target) for kind in ("cross", "dot", "norm", "transpose"))
    plain = [{_plain(name) for name in side} for side in sides]
    if not ordered and all(len(one) == len(two) for one, two in zip(plain, sides, strict=True)) and not any(map(_transposes, (gold, target))):
        renamed |= {name: _plain(name) for side in sides for name in side if name.startswith(_FONT)}
    return renamed


def _adds(node: Node, letters: str) -> bool:
    """Whether an expression is a sum in which one of these letters stands alone."""
    return node.kind == "sum" and any(part.kind == "name" and part.name in letters for part in node.parts)


def _plain(name: str) -> str:
    return name.partition(" ")[2] if name.startswith(_FONT) else name


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if not names:
        return node
    name = names.get(node.name, node.name) if node.kind == "name" else node.name
    return replace(node, name=name, parts=tuple(_renamed(part, names) for part in node.parts))


def _agree(gold: Node, target: Node, names: Names, equal: Callable[[Value, Value], bool]) -> bool:
    """Whether two expressions are equal at every point where both have a value; three such points are needed."""
    if names.closed:
        return _compared(gold, target, replace(names.point, kind="complex"), equal) is True or _none_is_unknown(gold, target, names)
    for kinds in ((("both", 10), ("positive", 6)), (("complex", 5),)):
        seen = 0
        for kind, count in kinds:
            for index in range(count):
                point = replace(names.point, seed=f"{index}", kind=kind, rough=[])
                found = _compared(gold, target, point, equal)
                if found is False:
                    return False
                seen += found is True
        if seen >= 3:
            return True
    raise Unknown


def _none_is_unknown(gold: Node, target: Node, names: Names) -> bool:
    """False where both values are known, as they differ. Raises Unknown where one side cannot be computed."""
    for node in (gold, target):
        evaluate_or_unknown(node, replace(names.point, kind="complex"))
    return False


def evaluate_or_unknown(node: Node, point: Point) -> Value:
    """The value. Raises Unknown."""
    try:
        return evaluate(node, point)
    except NoValue:
        raise Unknown from None


def _compared(gold: Node, target: Node, point: Point, equal: Callable[[Value, Value], bool]) -> bool | None:
    """None where one of them has no value here."""
    try:
        left, right = evaluate(gold, point), evaluate(target, point)
        if equal(left, right):
            return True
        tiny = max([abs(number(cell)) for cell in (*_cells(left), *_cells(right))], default=0) < MP.mpf("1e-30")
        if not tiny:
            return _roughly(left, right) if point.rough else False
        with _more_digits():
            left, right = evaluate(gold, point), evaluate(target, point)
            return equal(left, right) or all(abs(number(cell)) < MP.mpf("1e-300") for cell in (*_cells(left), *_cells(right)))
    except (Infinite, OutOfDomain, NoValue):
        return None


@contextmanager
def _more_digits() -> Iterator[None]:
    before = MP.dps
    MP.dps = 400
    try:
        yield
    finally:
        MP.dps = before


def _roughly(left: Value, right: Value) -> bool:
    one, two = _cells(left), _cells(right)
    return len(one) == len(two) and all(
        abs(number(a) - number(b)) <= _ROUGH * max(abs(number(a)), abs(number(b)), MP.mpf("1e-3")) for a, b in zip(one, two, strict=True)
    )


def _close(gold: Node, target: Node) -> Callable[[Value, Value], bool]:
    """Whether two values are equal, decimals allowed for as the contract says."""
    decimals = [_decimals(gold), _decimals(target)]

    def close(left: Value, right: Value) -> bool:
        one, two = _cells(left), _cells(right)
        if len(one) != len(two) or isinstance(left, Matrix) != isinstance(right, Matrix):
            return False
        if isinstance(left, Matrix) and left.shape != right.shape:
            return False
        return all(_same_number(a, b, decimals, gold, target) for a, b in zip(one, two, strict=True))

    return close


def _same_number(left: Scalar, right: Scalar, decimals: list[int], gold: Node, target: Node) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right or _rounds(left, target, right) or _rounds(right, gold, left)
    one, two = number(left), number(right)
    difference, size = abs(one - two), max(abs(one), abs(two))
    if difference <= _SAME * size:
        return True
    if min(decimals) == 0 < max(decimals):  # one side alone has decimals: it may stand for an irrational number
        return bool(difference <= _DECIMAL * min(1, size))
    return False


def _decimals(node: Node) -> int:
    """The most digits behind a point in an expression."""
    own = len(node.name.partition(".")[2]) if node.kind == "number" else 0
    return max([own, *map(_decimals, node.parts)])


def _rounds(exact: Fraction, node: Node, value: Fraction) -> bool:
    """Whether a decimal is the rounded value of a fraction whose own decimals never end."""
    while node.kind in ("negative", "group"):
        node = node.parts[0]
    return node.kind == "number" and exact * value > 0 and rounds(exact, node.name, abs(value))


def approximate(answers: Sequence[Answer | None]) -> bool:
    """Whether the sides of ``≈`` can be read, hold, and lie within 1 % of the first where they have no unknowns."""
    numbers: list[Scalar] = []
    for answer in answers:
        if answer is None or answer.form != "one" or not consistent(answer.items[0]):
            return False
        side = answer.items[0].value
        if not is_closed(side):
            continue
        try:
            value = evaluate(side, Point("approximate", imaginary=True))
        except NoValue:
            return False
        if isinstance(value, Matrix):
            return False
        numbers.append(number(value))
    return all(abs(value - numbers[0]) <= abs(numbers[0]) / 100 for value in numbers)


def is_rational(answer: Answer | None) -> bool:
    """Whether an answer is one fraction."""
    if answer is None or answer.form != "one" or not is_closed(answer.items[0].value):
        return False
    try:
        return isinstance(evaluate(answer.items[0].value, Point("rational", imaginary=True)), Fraction)
    except NoValue:
        return False


def may_ask_engine(gold: Answer, target: Answer) -> bool:
    """Whether the symbolic engine reads both as they are written: one value each, in the same names, without functions of them."""
    if "list" in (gold.form, target.form):
        return False
    sides = [[side for item in answer.items for side in item.sides] for answer in (gold, target)]
    known = [side for side in (*sides[0], *sides[1]) if side is not None]
    names = [set().union(*(unknowns(side) for side in some if side is not None)) for some in sides]
    if len(known) < len(sides[0]) + len(sides[1]) or names[0] != names[1]:
        return False
    opaque = ("apply", "operator", "derivative", "transpose", "cross", "either", "norm")
    return not any(has(side, kind) for side in known for kind in opaque) and not any(map(_transposes, known))
