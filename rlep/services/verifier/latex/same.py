"""Equality of two answers, by what they are worth where their names have values; nothing is simplified."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from rlep.services.verifier.latex.agree import Unknown, differ_by_constant, equal_values, proportional
from rlep.services.verifier.latex.finite import infinity_of, undefined
from rlep.services.verifier.latex.forms import (
    LETTERS,
    Alternatives,
    Assignment,
    alternatives_of,
    as_tuples,
    assignment_of,
    equates_number,
    in_one_form,
    letters_of,
    with_both_signs,
)
from rlep.services.verifier.latex.letters import without_constant
from rlep.services.verifier.latex.nodes import SET_OPERATIONS, Node, is_closed, renamed, ungrouped, unknowns
from rlep.services.verifier.latex.points import SamplePoint
from rlep.services.verifier.latex.regions import complementary, same_region
from rlep.services.verifier.latex.statements import Answer, Item, opened, read
from rlep.services.verifier.latex.tokens import Unreadable
from rlep.services.verifier.latex.whole_numbers import same_family, with_counter_of

_NAMING = frozenset({"name", "apply", "derivative", "absolute", "norm", "tuple", "ratio", "operator"})
"""Kinds of node on the left of ``=`` that are read as the name of the value on the right."""
_FUNCTIONS = frozenset(Node("name", (), letter) for letter in "fghFy")
"""Functions whose values ``y`` stands for."""
_FLIPPED = {">": "<", ">=": "<="}
_CHAIN = SamplePoint("chain")
_OTHERWISE = re.compile(r"\\text\{\s*(?:otherwise|else(?:where)?)\s*\}")
Part = TypeVar("Part")


def same(gold: Answer, target: Answer) -> bool:
    """Tell whether they say the same. Raises Unknown where neither can be shown."""
    if not all(map(consistent, target.items)):
        return False
    if "cycles" in (gold.form, target.form):
        return gold == target
    if (found := same_region(gold, target)) is not None:
        return found
    gold, target = in_one_form(gold, target)
    gold, target = with_both_signs(gold), with_both_signs(target)
    if (found := same_family(gold, target)) is not None:
        return found
    target = with_counter_of(gold, target)
    if (found := _same_alternatives(gold, target)) is not None:
        return found
    if (found := _assigned(gold, target)) is not None:
        return found
    forms = {gold.form, target.form}
    if forms == {"one"}:
        return same_item(gold.items[0], target.items[0])
    if "one" in forms:
        return _one_with_many(gold, target)
    return _same_elements(gold, target)


def _same_elements(gold: Answer, target: Answer) -> bool:
    """Tell whether two tuples, sets or lists have the same elements."""
    forms = {gold.form, target.form}
    related = any(item.relations for answer in (gold, target) for item in answer.items)
    if related and forms != {"list"}:
        return False
    if "tuple" in forms:
        plain = all(answer.brackets in ("", "()") for answer in (gold, target)) or gold.brackets == target.brackets
        return plain and "set" not in forms and _in_order(gold.items, target.items)
    if "set" in forms:
        lists = [answer.items for answer in (gold, target) if answer.form == "list"]
        repeats = any(len(_distinct(items)) < len(items) for items in lists)
        return not repeats and _matched(_distinct(gold.items), _distinct(target.items))
    if related and (gold.joint == "or") != (target.joint == "or"):
        return False
    named = [{"="} in [set(item.relations) for item in answer.items] for answer in (gold, target)]
    if related and named[0] != named[1]:
        return _in_order(gold.items, target.items)
    if related and _repeats_names(gold, target):
        raise Unknown  # which equations belong together is lost
    return _matched(gold.items, target.items)


def _same_alternatives(gold: Answer, target: Answer) -> bool | None:
    """Values of one unknown, as ``x=2 or x=-3``, against such values or values without a name; None for anything else."""
    one, two = alternatives_of(gold), alternatives_of(target)
    if one is None and two is None:
        return None
    if assignment_of(gold) is not None and assignment_of(target) is not None:
        return None  # as x_1=1, x_2=2: each name has its value
    if one is not None and two is not None:
        return one.name == two.name and _matched(one.values, two.values)
    if one is not None:
        return _matched(one.values, target.items) if _is_collection(target) else _without_names(one)
    assert two is not None
    return _matched(gold.items, two.values) if _is_collection(gold) else _without_names(two)


def _is_collection(answer: Answer) -> bool:
    """Tell whether an answer is several values without names or order."""
    return answer.form in ("list", "set") and not any(item.relations for item in answer.items)


def _without_names(alternatives: Alternatives) -> bool | None:
    """Compare alternatives with anything but such values: something else, unless their indices are names of their own."""
    return None if alternatives.counted else False


def _repeats_names(*answers: Answer) -> bool:
    """Tell whether an answer gives several values to one of several names."""
    for answer in answers:
        names = [letters_of(item.sides[0]) for item in answer.items if set(item.relations) == {"="}]
        if 1 < len(set(names)) < len(names):
            return True
    return False


def _one_with_many(gold: Answer, target: Answer) -> bool:
    """A chain that ends in a tuple or set, as ``(x,y)=(1,2)`` or ``x\\in\\{1,2\\}``, against its elements."""
    one, many = (gold, target) if gold.form == "one" else (target, gold)
    item = one.items[0]
    if item.relations and set(item.relations) <= {"=", "in"} and item.value.kind in ("tuple", "set"):
        if (item.relations == ("in",) and item.value.kind != "set") or equates_number(item):
            return False
        elements = opened(item.value)
        return same(elements, many) if one is gold else same(many, elements)
    if not item.relations and item.value.kind in SET_OPERATIONS:
        raise Unknown
    return False


def _in_order(gold: Sequence[Item], target: Sequence[Item]) -> bool:
    return len(gold) == len(target) and all(same_item(one, two) for one, two in zip(gold, target, strict=True))


def _matched(gold: Sequence[Item], target: Sequence[Item]) -> bool:
    """Tell whether the items are the same in some order."""
    return _paired(gold, target, same_item)


def _paired(gold: Sequence[Part], target: Sequence[Part], alike: Callable[[Part, Part], bool]) -> bool:
    """Tell whether each part has a partner of its own; likeness is transitive, so the first one is as good as any."""
    if len(gold) != len(target):
        return False
    left = list(target)
    for part in gold:
        found = next((other for other in left if alike(part, other)), None)
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


def _assigned(gold: Answer, target: Answer) -> bool | None:
    """Values under names against values under names or in order; None where neither side has names."""
    one, two = assignment_of(gold), assignment_of(target)
    if one is not None and two is not None:
        same_names = one.values.keys() == two.values.keys()
        return same_names and all(same_item(one.values[name], two.values[name]) for name in one.values)
    if one is not None:
        return _in_sequence(one, target)
    if two is None or not _is_sequence(gold):
        return None
    return (gold.form == "tuple" or two.ordered) and _in_order(gold.items, two.in_order())


def _is_sequence(answer: Answer) -> bool:
    """Tell whether an answer is several values without names."""
    return answer.form in ("tuple", "list") and not any(item.relations for item in answer.items)


def _in_sequence(gold: Assignment, target: Answer) -> bool | None:
    """Named values against values without names, in the order of the names."""
    if not _is_sequence(target):
        return None
    return _in_order(gold.in_order(), target.items)


def consistent(item: Item) -> bool:
    """Tell whether a chain of ``=`` holds: sides without unknowns are finite and agree, no other has an undefined part."""
    if set(item.relations) != {"="}:
        return True
    if infinity_of(item.value, _CHAIN) is not None:
        return _same_infinity(item)
    sides = [side for side in item.sides if side is not None]
    if len(sides) > 1 and sides[0] in LETTERS:
        sides = sides[1:]  # a name, as an eccentricity's or an interest's
    if any(map(undefined, sides)):
        return False
    try:
        return all(same_value(left, right) for left, right in pairwise(filter(is_closed, sides)))
    except Unknown:
        return False


def _same_infinity(item: Item) -> bool:
    """Tell whether the sides of a chain that have no unknowns are one infinity."""
    closed = [side for side in item.sides if side is not None and is_closed(side)]
    return len({infinity_of(side, _CHAIN) for side in closed}) <= 1


def same_item(gold: Item, target: Item) -> bool:
    """Tell whether two statements say the same. Raises Unknown."""
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
        return _same_named(gold, target.value)
    return bool(gold.relations and target.relations) and _same_relations(gold, target)


def _same_named(gold: Item, target: Node) -> bool:
    """A chain against a value: its last side counts behind a name, or its first side before one."""
    left = gold.sides[0]
    if not all(
        side is not None and (_is_formula(side, gold) or same_value(side, gold.value)) for side in gold.sides[1:-1]
    ):
        return False  # ``a=b=c`` names no value
    if left is None or _names(left):
        return same_value(gold.value, target)
    return gold.value.kind in _NAMING and is_closed(left) and same_value(left, target)


def _same_side_of_chain(one: Node | None, two: Node | None) -> bool:
    return one is not None and two is not None and same_value(one, two)


def _is_formula(side: Node, chain: Item) -> bool:
    """Tell whether a side of a chain ending in a number is that number's formula, as in ``S=ab=6``, and no second unknown."""
    return is_closed(chain.value) and len(unknowns(side)) > 1


def _names(node: Node) -> bool:
    """Tell whether an expression names its value: a letter, a side ``AB``, a ratio of sides, a function as ``\\sin x``."""
    if node.kind == "quotient":
        return all(map(letters_of, node.parts))
    if node.kind == "function":
        return node.name not in ("ln", "log")
    return node.kind in _NAMING or bool(letters_of(node))


def _same_side(gold: Node, target: Item) -> bool:
    """A value against a chain: its last side counts, or its first where the last is a name, as in ``42 = x``."""
    first, last = target.sides[0], target.value
    if last.kind == "name" and first is not None and is_closed(first):
        return same_value(gold, first)
    return not equates_number(target) and same_value(gold, last)


def _same_equation(gold: Item, target: Item) -> bool:
    one, two = _shortened(gold), _shortened(target)
    if None in (one[0], two[0]):
        if one[0] is None and two[0] is None:
            raise Unknown
        return False
    if len(one) != len(two):
        return False
    if len(one) > 2 and _paired(one, two, _same_side_of_chain):
        return True
    return all(_same_pair_of_sides(left, right) for left, right in zip(pairwise(one), pairwise(two), strict=True))


def _shortened(chain: Item) -> list[Node | None]:
    """The sides of a chain without those between that are the last one in other words or, before a number, its formula."""
    first, *between, last = chain.sides
    middle = [side for side in between if side is None or not _is_in_passing(side, chain)]
    return [first, *middle, last]


def _is_in_passing(side: Node, chain: Item) -> bool:
    return (is_closed(side) and is_closed(chain.value)) or _is_formula(side, chain) or _is_identity(side, chain.value)


def _same_pair_of_sides(gold: tuple[Node | None, Node | None], target: tuple[Node | None, Node | None]) -> bool:
    (left, right), (one, two) = gold, target
    if left is None or right is None or one is None or two is None:
        raise Unknown
    if _is_identity(left, right):  # only the same sides say the same
        return (left, right) == (one, two)
    if left == one:
        if not is_closed(left) or left in LETTERS:
            return same_value(right, two)
        with suppress(Unknown):
            if same_value(right, two):
                return True
    if (names := _same_function(left, right, one, two)) is not None:
        return same_value(renamed(right, names), renamed(two, names))
    if any(node.kind in ("tuple", "set", "ratio") for node in (left, right, one, two)):
        return same_value(left, one) and same_value(right, two)
    return proportional(_minus(left, right), _minus(one, two), positive=False)


def _same_function(gold: Node, rule: Node, target: Node, other_rule: Node) -> dict[str, str] | None:
    """The names under which two left sides are one function: ``f(x)`` and ``f(t)``, or ``f(x)`` and ``y``; None for others."""
    sides = [(node, side) for node, side in ((gold, rule), (target, other_rule)) if _is_function_of_its(node, side)]
    if len(sides) == 2:
        (head, letter), (other, second) = (node.parts for node, _ in sides)
        free = letter.name not in unknowns(other_rule)
        return {second.name: letter.name} if head == other and letter != second and free else None
    if not sides:
        return None
    ((node, side),) = sides
    other = target if node is gold else gold
    return {} if other == Node("name", (), "y") and "y" not in unknowns(side) else None


def _is_function_of_its(node: Node, rule: Node) -> bool:
    """Tell whether a left side is a function of a letter that its right side has, as ``f(x)`` in ``f(x)=x^2``."""
    if node.kind != "apply" or len(node.parts) != 2 or node.parts[1].kind != "name":
        return False
    head, letter = node.parts
    return head in _FUNCTIONS and letter.name in unknowns(rule)


def _is_identity(left: Node, right: Node | None) -> bool:
    """Tell whether an equation holds for all values of its unknowns."""
    try:
        return right is not None and unknowns(left) == unknowns(right) and same_value(left, right)
    except Unknown:
        return False


def _minus(left: Node, right: Node) -> Node:
    return Node("sum", (left, Node("negative", (right,))))


def _pairs(item: Item) -> list[tuple[str, Node, Node]]:
    """``(relation, left, right)`` of each relation, ``>`` written as ``<``. Raises Unknown for a side that cannot be read."""
    pairs = []
    for (left, right), relation in zip(pairwise(item.sides), item.relations, strict=True):
        if left is None or right is None:
            raise Unknown
        pairs.append((_FLIPPED[relation], right, left) if relation in _FLIPPED else (relation, left, right))
    return pairs


def _same_relations(gold: Item, target: Item) -> bool:
    return _paired(_pairs(gold), _pairs(target), _same_pair)


def _same_pair(one: tuple[str, Node, Node], two: tuple[str, Node, Node]) -> bool:
    if one[0] != two[0]:
        return False
    (relation, left, right), (_, low, high) = one, two
    if relation in ("<", "<=", "!=") and not all(map(is_closed, (left, right, low, high))):
        return proportional(_minus(right, left), _minus(high, low), positive=relation != "!=")
    return same_value(left, low) and same_value(right, high)


def same_value(gold: Node, target: Node) -> bool:
    """Tell whether two values are equal wherever both are defined. Raises Unknown."""
    gold, target = as_tuples(ungrouped(gold), ungrouped(target))
    if gold == target:
        return True
    kinds = {gold.kind, target.kind}
    if "set" in kinds or kinds == {"tuple"}:
        return len(kinds) == 1 and same(opened(gold), opened(target))
    if "cases" in kinds:
        return len(kinds) == 1 and _same_cases(gold, target)
    if "ratio" in kinds:
        return len(kinds) == 1 and _same_ratio(gold.parts, target.parts)
    if kinds & SET_OPERATIONS:
        if len(kinds) > 1:
            raise Unknown
        return _same_sets(gold, target)
    endless = infinity_of(gold, SamplePoint("infinity")), infinity_of(target, SamplePoint("infinity"))
    if endless != (None, None):
        return endless[0] == endless[1]
    if (antiderivatives := without_constant(gold, target)) is not None:
        return differ_by_constant(*antiderivatives)
    return equal_values(gold, target)


def _same_ratio(gold: Sequence[Node], target: Sequence[Node]) -> bool:
    """Tell whether the parts of two ratios as ``1:2:3`` are the same up to one factor."""
    pairs = list(zip(gold, target, strict=False))
    return len(gold) == len(target) and all(
        equal_values(Node("product", (left, other)), Node("product", (right, one)))
        for (one, other), (left, right) in pairwise(pairs)
    )


def _same_cases(gold: Node, target: Node) -> bool:
    """Tell whether two functions have the same values under the same conditions, in any order; *otherwise* is what is left."""
    one, two = _explicit(gold, target), _explicit(target, gold)
    return _paired(one, two, _same_case)


def _explicit(node: Node, other: Node) -> Sequence[Node]:
    """The cases of a function; *otherwise* as the condition of the other function that covers what is left, if one does."""
    rest = [case for case in node.parts if _OTHERWISE.fullmatch(case.name)]
    if len(rest) != 1 or any(_OTHERWISE.fullmatch(case.name) for case in other.parts):
        return node.parts
    mine = [case.name for case in node.parts if case is not rest[0]]
    for case in other.parts:
        if complementary([*mine, case.name]):
            return [replace(part, name=case.name) if part is rest[0] else part for part in node.parts]
    return node.parts


def _same_case(gold: Node, target: Node) -> bool:
    if not same_value(gold.parts[0], target.parts[0]):
        return False
    try:
        return gold.name == target.name or same(read(gold.name), read(target.name))
    except (Unknown, Unreadable):
        return False


def _same_sets(gold: Node, target: Node) -> bool:
    """Tell whether the operands of two unions, intersections or differences are the same, in any order but for a difference."""
    (left, right), (one, two) = gold.parts, target.parts
    if same_value(left, one) and same_value(right, two):
        return True
    return gold.kind != "difference" and same_value(left, two) and same_value(right, one)
