"""The letters of two expressions, read together: functions or factors, vectors, matrices, whole numbers, other spellings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations

from rlep.services.verifier.latex.nodes import (
    SET_OPERATIONS,
    Node,
    all_of,
    has,
    is_closed,
    is_word,
    renamed,
    ungrouped,
    unknowns,
    with_plain_index,
)
from rlep.services.verifier.latex.points import SamplePoint
from rlep.services.verifier.latex.statements import Answer

_FUNCTION_LETTERS = frozenset(
    {"f", "F", "P", "E", "\\phi", "\\Phi", "\\psi", "\\zeta", "\\mathbb E", "\\mathbb P", "\\mathrm E"}
)
"""Letters that are functions by custom where a bracket follows them."""
_VECTORS = ("\\mathbf ", "\\vec ", "\\boldsymbol ", "\\bm ", "\\overrightarrow ", "\\hat ")
_FONT = (
    "\\mathbf ",
    "\\boldsymbol ",
    "\\bm ",
    "\\mathit ",
    "\\mathsf ",
    "\\mathrm ",
    "\\mathtt ",
    "\\mathnormal ",
    "\\pmb ",
    "\\mathcal N",
    "\\mathbb E",
    "\\mathbb P",
)
_MOST_CONSTANTS = 3
_COMPLEX = frozenset({"z", "w", "\\zeta", "\\psi", "\\omega"})
_WHOLE = frozenset("kmnN")
"""Letters that are whole numbers by custom, where they are rounded."""
_CONSTANT = re.compile(r"[CcKAB]|[Cc]_\{\d\}")
"""Letters of arbitrary constants."""
_ADDED = frozenset({"C", "c", "K"})
"""Letters of the constant that is added to an antiderivative."""
_VARIABLES = frozenset("xtrsuz") | {"\\theta"}
_PARAMETERS = frozenset("kr") | {"\\lambda", "\\omega", "\\mu"}
"""Letters that may stand beside the variable of a general solution."""
_LEIBNIZ = re.compile(r"d ([a-zA-Z]) / d d ([a-z]) (?:\^ \d )?(?:\^ (\d))?")
"""Names that the grammar gives to ``\\frac{dy}{dx}`` and ``\\frac{d^2y}{dx^2}``."""
_MINUS_ONE = Node("negative", (Node("number", value=Fraction(1)),))
_T = Node("name", (), "T")
_OPAQUE = ("apply", "operator", "derivative", "transpose", "cross", "either", "norm", "limit")
"""Operations that the symbolic engine does not read as they are written."""


@dataclass(frozen=True)
class Names:
    """A reading of the letters of two expressions together."""

    closed: bool
    """There are no unknowns, so that one point is enough."""
    point: SamplePoint
    may_multiply: frozenset[str]
    """Letters before a bracket that may be factors."""
    spellings: dict[str, str]
    """Other spellings of names."""


def readings(gold: Node, target: Node) -> Iterator[tuple[Node, Node, Names]]:
    """Both expressions with the letters before brackets as functions, then, where that may be, as factors."""
    names = _names_of(gold, target)
    one, two = (renamed(node, names.spellings) for node in (gold, target))
    yield one, two, names
    if names.may_multiply:
        yield _multiplied(one, names.may_multiply), _multiplied(two, names.may_multiply), names
    for constants in _exchanges(one, two):
        yield one, renamed(two, constants), names


def _exchanges(gold: Node, target: Node) -> Iterator[dict[str, str]]:
    """Other names for the arbitrary constants of an answer: those of the reference, in every order.

    Constants are arbitrary in an expression in one variable which is linear in them, where they are numbered, where the
    only one is added, or where it is the factor of a power of e.
    """
    sides = [unknowns(gold), unknowns(target)]
    wanted, given = (sorted(name for name in side if _CONSTANT.fullmatch(name)) for side in sides)
    others = [side - {*wanted, *given, "e"} for side in sides]
    if not wanted or len(wanted) != len(given) or len(wanted) > _MOST_CONSTANTS or others[0] != others[1]:
        return
    if {*wanted, *given} == {"C", "c"} and others[0] and others[0] <= _VARIABLES | {"y"}:
        yield {given[0]: wanted[0]}
    if len(others[0] & _VARIABLES) != 1 or others[0] - _VARIABLES - _PARAMETERS:
        return
    numbered = all("_" in name for name in wanted)
    if not (_is_linear(gold, wanted) if numbered else len(wanted) == 1 and _is_arbitrary(gold, wanted[0], given[0])):
        return
    for order in permutations(wanted):
        if list(order) != given:
            yield dict(zip(given, order, strict=True))


def without_constant(gold: Node, target: Node) -> tuple[Node, Node] | None:
    """Two antiderivatives in one variable without the constants that are added to them; None for anything else."""
    parts = []
    for node in (gold, target):
        rest = tuple(part for part in node.parts if part.kind != "name" or part.name not in _ADDED)
        if node.kind != "sum" or len(rest) != len(node.parts) - 1:
            return None
        parts.append(Node("sum", rest))
    names = [unknowns(part) - {"e"} for part in parts]
    return (parts[0], parts[1]) if names[0] == names[1] and len(names[0]) == len(names[0] & _VARIABLES) == 1 else None


def _is_linear(node: Node, constants: list[str]) -> bool:
    """Tell whether every constant is a factor of one term, and no term has two, in some factor of an expression."""
    inner = ungrouped(node)
    own = [part for part in inner.parts if unknowns(part) & set(constants)]
    if inner.kind in ("product", "sum") and len(own) == 1:
        return _is_linear(own[0], constants)
    if inner.kind == "quotient" and own == [inner.parts[0]]:
        return _is_linear(own[0], constants)
    if inner.kind != "sum" or len(own) != len(constants):
        return False
    return all(len(unknowns(part) & set(constants)) == 1 and _has_factor(part, constants) for part in own)


def _has_factor(term: Node, constants: list[str]) -> bool:
    factors = [term] if term.kind == "name" else [ungrouped(part) for part in term.parts]
    return term.kind in ("name", "product", "quotient", "negative") and any(
        part.kind == "name" and part.name in constants for part in factors
    )


def _is_arbitrary(node: Node, name: str, other: str) -> bool:
    """Tell whether a constant is added to an expression and may have the other letter, or is the factor of a power of e."""
    if node.kind == "sum":
        added = any(part.kind == "name" and part.name == name for part in node.parts)
        rest = [part for part in node.parts if name in unknowns(part)]
        return added and len(rest) == 1 and {name, other} <= _ADDED
    names = {part.name for part in node.parts if part.kind == "name"}
    powers = [part for part in node.parts if part.kind == "power" and part.parts[0] == Node("name", (), "e")]
    return node.kind == "product" and name in names and any(unknowns(part.parts[1]) for part in powers)


def _multiplied(node: Node, factors: frozenset[str]) -> Node:
    """An expression with these letters as factors of the brackets behind them, to which alone an exponent or ``!`` belongs."""
    if node.kind == "apply" and _is_factor(node, factors):
        head, argument = (_multiplied(part, factors) for part in node.parts)
        return Node("product", (head, Node("group", (argument,))))
    marked = node.kind in ("power", "transpose", "degrees") or node.name in ("factorial", "double factorial")
    if marked and node.parts[0].kind == "apply" and _is_factor(node.parts[0], factors):
        head, argument = (_multiplied(part, factors) for part in node.parts[0].parts)
        rest = tuple(_multiplied(part, factors) for part in node.parts[1:])
        return Node("product", (head, replace(node, parts=(Node("group", (argument,)), *rest))))
    return replace(node, parts=tuple(_multiplied(part, factors) for part in node.parts))


def _is_factor(node: Node, factors: frozenset[str]) -> bool:
    head = node.parts[0]
    return (head.parts[0] if head.kind == "power" else head).name in factors and len(node.parts) == 2


def _names_of(gold: Node, target: Node) -> Names:
    sides = [unknowns(gold), unknowns(target)]
    spellings = _renaming(gold, target, sides)
    together = {spellings.get(name, name) for name in sides[0] | sides[1]}
    applied = list(_applications(gold)) + list(_applications(target))
    heads = {spellings.get(name, name) for name, _ in applied}
    imaginary = "i" in together and (all("i" in side for side in sides) or together <= {"e", "i", "z"})
    matrices = _matrix_letters(gold, target)
    vectors = frozenset(name for name in together if name.startswith(_VECTORS)) - matrices
    point = SamplePoint(
        "",
        integers=frozenset(_whole_names(gold) | _whole_names(target)),
        matrices=matrices,
        vectors=vectors,
        imaginary=imaginary,
        complexes=_complex_letters(gold, target),
    )
    constants = {"e", "i"} if imaginary else {"e"}
    derived = any(has(node, "operator", "derivative") for node in (gold, target))
    closed = together <= constants and not heads and not derived
    bare = _bare(gold) | _bare(target)
    arguments = {name: [node for head, node in applied if spellings.get(head, head) == name] for name in heads}
    may_multiply = frozenset(name for name in heads if _may_multiply(name, arguments[name], bare))
    return Names(closed, point, may_multiply, spellings)


def _complex_letters(gold: Node, target: Node) -> frozenset[str]:
    """Letters that are complex numbers by custom, where an absolute value, a real or an imaginary part is asked for."""
    if not any(_asks_for_parts(node) for node in (gold, target)):
        return frozenset()
    names = unknowns(gold) | unknowns(target)
    return frozenset(name for name in names if name.removeprefix("\\bar ").partition("_")[0] in _COMPLEX)


def _asks_for_parts(node: Node) -> bool:
    asks = node.kind == "absolute" or (node.kind == "function" and node.name in ("Re", "Im", "arg"))
    return asks or node.name.startswith("\\bar ") or any(map(_asks_for_parts, node.parts))


def _may_multiply(name: str, arguments: list[Node], bare: set[str]) -> bool:
    """Tell whether a letter before a bracket may be a factor: it also stands alone, or a sum is in the bracket."""
    sums = all(argument.kind == "sum" for argument in arguments)
    if len(set(arguments)) > 1 and any(argument.kind == "name" for argument in arguments):
        return False  # as in ``a(n)=a(n-1)+2``
    if "'" in name or name in ("f", "F") or is_word(name):
        return False
    if name in _FUNCTION_LETTERS:
        return sums and name in bare
    return sums or name in bare


def _applications(node: Node) -> Iterator[tuple[str, Node]]:
    """``(name, what is in the bracket behind it)``; several arguments are a tuple."""
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
        base = ungrouped(node.parts[0])
        if base.kind == "negative" and is_closed(base):
            found |= unknowns(node.parts[1])
    if node.kind in ("total", "running product"):
        found |= unknowns(node.parts[0]) | unknowns(node.parts[1])
    if node.kind == "function" and node.name in ("floor", "ceiling"):
        found |= unknowns(node) & _WHOLE
    if node.kind == "modulo" or (node.kind == "function" and node.name in ("gcd", "lcm", "double factorial")):
        found |= unknowns(node)
    return found.union(*map(_whole_names, node.parts)) - {"e"}


def _matrix_letters(gold: Node, target: Node) -> frozenset[str]:
    """Capital letters where one is transposed or inverted, or where one side tells ``AB`` from ``BA``."""
    if not any(_transposes(node) or _tells_order(node) for node in (gold, target)):
        return frozenset()
    names = (unknowns(gold) | unknowns(target)) - {"T"}
    return frozenset(name for name in names if _is_capital(name) and not name.startswith("\\vec"))


def _is_capital(name: str) -> bool:
    return len(name.rsplit(" ", maxsplit=1)[-1]) == 1 and name[-1:].isupper()


def _transposes(node: Node) -> bool:
    """Tell whether an expression transposes or inverts capital letters."""
    if node.kind == "transpose":
        return True
    if node.kind == "power" and node.parts[1] in (_T, _MINUS_ONE) and _of_matrices(node.parts[0]):
        return True
    return any(map(_transposes, node.parts))


def _of_matrices(node: Node) -> bool:
    """Tell whether capital letters alone make this up."""
    if node.kind == "name":
        return _is_capital(node.name)
    if node.kind == "power":
        return _of_matrices(node.parts[0])
    return node.kind in ("group", "product", "sum", "dot") and all(map(_of_matrices, node.parts))


def _tells_order(node: Node) -> bool:
    """Tell whether an expression has two products of the same capital letters in different order."""
    found = [product for product in all_of(node, "product") if all(map(_of_matrices, product.parts))]
    products = [tuple(part.name for part in product.parts) for product in found]
    return any(one != two and sorted(one) == sorted(two) for one in products for two in products)


def _renaming(gold: Node, target: Node, sides: list[set[str]]) -> dict[str, str]:
    """Other spellings of a name, where no side uses both: bold or upright type, also of its index, ``I``, ``dy/dx``."""
    spellings: dict[str, str] = {}
    for one, two in (sides, sides[::-1]):
        if "i" in one and "I" in two and "I" not in one and "i" not in two and not (one | two) - {"i", "I", "e"}:
            spellings["I"] = "i"
        spellings |= _primes_of(one, two)
    ordered = any(has(node, "cross", "dot", "norm", "transpose") or _transposes(node) for node in (gold, target))
    plain = {name: with_plain_index(name if ordered else _plain(name)) for side in sides for name in side}
    if all(len({plain[name] for name in side}) == len(side) for side in sides):
        if not ordered:
            spellings |= {name: _plain(name) for name in plain if name.startswith(_FONT)}
        common = {plain[name] for name in sides[0]} & {plain[name] for name in sides[1]}
        spellings |= {name: plain[name] for name in sides[0] ^ sides[1] if plain[name] in common}
    for name in sides[0] ^ sides[1]:
        if name[:-1] == "\\mathbf " and (blackboard := f"\\mathbb {name[-1]}") in sides[0] ^ sides[1]:
            spellings[name] = blackboard
    return spellings


def _primes_of(primed: set[str], names: set[str]) -> dict[str, str]:
    """``y'`` for each ``dy/dx`` of the names, where all are by one letter, by which the other side's primes may be."""
    matches = {name: _LEIBNIZ.fullmatch(name) for name in names if name.startswith(("d ", "\\partial "))}
    by = {match[2] if match else "" for match in matches.values()}
    variables = (primed | names) & {"x", "t"}
    if len(by) != 1 or "" in by or (variables and variables != by):
        return {}
    spellings = {name: match[1] + "'" * int(match[3] or 1) for name, match in matches.items() if match}
    return spellings if set(spellings.values()) <= primed else {}


def _plain(name: str) -> str:
    """A name without its font."""
    return name.partition(" ")[2] if name.startswith(_FONT) else name


def may_ask_engine(gold: Answer, target: Answer) -> bool:
    """Tell whether the symbolic engine reads both as written: operations on sets in the same names, no lists or functions."""
    if "list" in (gold.form, target.form):
        return False
    sides = [[side for item in answer.items for side in item.sides] for answer in (gold, target)]
    known = [side for side in (*sides[0], *sides[1]) if side is not None]
    names = [set().union(*(unknowns(side) for side in some if side is not None)) for some in sides]
    if len(known) < len(sides[0]) + len(sides[1]) or names[0] != names[1]:
        return False
    if not any(has(side, *SET_OPERATIONS) for side in known):
        return False  # what it would compute has a value here too, or is beyond both
    return not any(has(side, *_OPAQUE) or _transposes(side) for side in known)
