"""An answer as a list of statements: values, chains of relations, tuples and sets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlep.services.verifier.latex.nodes import Node, unknowns
from rlep.services.verifier.latex.syntax import Parser
from rlep.services.verifier.latex.tokens import Token, Unreadable, between, closing, lex, spelled, split

_WRITTEN_ALIKE = (
    "= < > \\equiv \\sim \\cong \\to \\rightarrow \\Rightarrow \\implies \\iff \\Leftrightarrow \\parallel \\perp \\subset"
    " \\subseteq \\supset \\supseteq \\propto \\mapsto \\ll \\gg \\simeq \\asymp"
)
_RELATIONS = {name: name for name in _WRITTEN_ALIKE.split()} | {
    "\\lt": "<",
    "\\gt": ">",
    "\\le": "<=",
    "\\ge": ">=",
    "\\ne": "!=",
    "\\in": "in",
    "\\notin": "not in",
}
"""Command or mark -> relation."""
INEQUALITIES = frozenset({"<", ">", "<=", ">=", "!=", "in", "not in"})
_ORDERS = frozenset({"<", ">", "<=", ">="})
_AND = frozenset({"and", ", and", "and also", "和", "及", "與", "与", "und", "et", "y", "и"})
_OR = frozenset({"or", ", or", "或", "oder", "ou", "o", "или"})
_PLAIN = re.compile(r"(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])(?!\s*\})")
_CYCLES = re.compile(r"(?:\(\s*\d+(?:(?:\s|\\[,;: ])+\d+)+\s*\)\s*)+")
_WORDS = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\}")
_DOMAIN = re.compile(
    r"[\s,;(]+(?:(?:where|for|with|and|as)(?![a-z])[\s,]*)?(?:(?:all|any|some|every|each|an?|arbitrary)(?![a-z])\s*)?"
    r"(?P<before>integers?(?![a-z])\s*)?(?P<name>[k-n])\s*"
    r"(?:\\in\s*(?P<kind>\\math(?:bb|bf)\s*\{?\s*[ZN]\s*\}?|[ZN](?![a-zA-Z]))(?P<positive>\s*[_^]\s*(?:[*+]|\{\s*[*+]\s*\}))?"
    r"|(?P<behind>(?:(?:is|are|being|an?|any|some|arbitrary)(?![a-z])\s*){1,3}integers?))?[\s).]*\Z"
)
"""A letter that is declared to be a whole number, at the end of an answer whose words stand outside of ``\\text``."""
_SET_OF_FAMILY = re.compile(
    r"\\\{\s*(?:([a-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?[|:]\s*\1\s*(=|\\ne(?![a-z]))\s*)?([^{}|:]*(?:\{[^{}]*\}[^{}|:]*)*?)\s*[|:,]\s*([k-n])\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\\\}"
)
_SYSTEM = re.compile(
    r"(?:\\\{\s*)?\\begin\{(cases|array|aligned)\}(?:\s*\{[lcr|]*\})?((?:(?!\\begin).)*)\\end\{\1\}", re.DOTALL
)
"""Statements under each other."""
_IF_ANY = re.compile(r"\\text|&(?!\s*=)")
_CASES = "\\begin { c a s e s }"
_IF = re.compile(r"\A[\s,]*\\text\{\s*,?\s*(?:if|for|when|where)?\s*,?\s*\}|\\text\{\s*[.,;]?\s*\}")
_NAMING = re.compile(r"[^\W\d_]|\d\s*,\s*-?[\d\\]")
_NO_VALUE = re.compile(
    r"\\infty|\{\s*\}(?!\s*[_^])|(?:/|\\[bp]?mod(?![a-zA-Z])|\\frac\s*(?:\{[^{}]*\}|\d))\s*\{?\s*0(?![\d.])"
)
"""An infinity, an empty operand or a division by zero, as it is written."""
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\[a-zA-Z]+)")
_NOT_A_NAME = re.compile(r"\\(?:neg|undefined|lnot)(?![a-zA-Z])|\?")
_WHOLE = tuple(Node("name", (), f"\\mathbb {letter}") for letter in "ZN")
"""The sets of whole numbers, as behind ``k \\in``."""


@dataclass(frozen=True, slots=True)
class Item:
    """One value, or a chain of relations: ``sides`` with ``relations`` between them."""

    sides: tuple[Node | None, ...]
    """None for a side that the grammar does not read, but that names something."""
    relations: tuple[str, ...] = ()
    modulus: str = ""

    @property
    def value(self) -> Node:
        """Its last side, which can always be read."""
        assert self.sides[-1] is not None
        return self.sides[-1]


@dataclass(frozen=True, slots=True)
class Answer:
    """The statements of an answer."""

    form: str
    """``one``, ``list``, ``tuple``, ``set`` or ``cycles``."""
    items: tuple[Item, ...]
    joint: str = ""
    """Of a list: ``,``, ``and`` or ``or``."""
    brackets: str = ""
    """Of a tuple."""
    whole: frozenset[str] = frozenset()
    """Letters that are declared to be whole numbers."""
    counted: str = ""
    """Where these begin: ``from 0`` or ``from 1``; empty where they may be negative."""


def read(latex: str) -> Answer:
    """The statements of an answer in plain LaTeX. Raises Unreadable."""
    if (system := _SYSTEM.fullmatch(latex)) and not _IF_ANY.search(system[2]):
        rows = [row.replace("&", "").strip().rstrip(",;.") for row in system[2].split("\\\\") if row.strip()]
        if all("=" in row for row in rows):
            return _read(",".join(rows).replace(",=", "="))
    unwrapped = _WORDS.sub(lambda match: " " * (match.start(1) - match.start()) + match[1] + " ", latex)
    if match := _SET_OF_FAMILY.fullmatch(latex):
        claim = f"{match[1]}\\ne {match[3]}" if match[2] and match[2] != "=" else match[3]
        return replace(_read(claim), whole=frozenset(match[4]))
    match = _DOMAIN.search(unwrapped)
    if match and match.start() and (match["before"] or match["kind"] or match["behind"]):
        natural, sign = (match["kind"] or "").rstrip("} ").endswith("N"), match["positive"] or ""
        if "*" in sign and not natural:
            return _read(latex)  # all whole numbers but 0
        counted = "from 1" if sign else "from 0" if natural else ""
        return replace(_read(latex[: match.start()]), whole=frozenset(match["name"]), counted=counted)
    return _read(latex)


def _read(latex: str) -> Answer:
    if _CYCLES.fullmatch(latex):
        return _cycles(latex)
    tokens = lex(_PLAIN.sub(r"\\text{\1}", latex))
    if tokens and tokens[0].text == "{" and closing(tokens, 0) == len(tokens) - 1 and any(map(_joint_of, tokens)):
        tokens = tokens[1:-1]
    parts = list(split(tokens, lambda token: bool(_joint_of(token))))
    if {",", ";"} <= {behind for _, behind in parts}:
        raise Unreadable("a list of lists")
    items = [_item(part) for part, _ in parts if part]
    if not any(item.modulus for item in items):
        items = [replace(item, relations=tuple("=" if r == "\\equiv" else r for r in item.relations)) for item in items]
    if not items:
        raise Unreadable("nothing")
    joints = {_joint(behind) for _, behind in parts if behind}
    if len(items) == 1:
        if joints - {","} or len(parts) > 2:
            raise Unreadable("a list of one")
        return _opened(items[0])
    if "or" in joints and len(joints) > 1 and any("=" in item.relations for item in items):
        raise Unreadable("alternatives of several equations")
    joint = next((name for name in ("or", "and") if name in joints), ",")
    return _plain(Answer("list", tuple(_without_domains(items)), joint))


def _joint_of(token: Token) -> str:
    if token.kind == "mark" and token.text in ",;":
        return ","
    word = token.text.strip().casefold() if token.kind == "text" else ""
    return "and" if word in _AND else "or" if word in _OR else ""


def _joint(text: str) -> str:
    return "," if text and text in ",;" else _joint_of(Token("text", text))


def _without_domains(items: list[Item]) -> list[Item]:
    """Without ``k \\in \\mathbb{Z}`` behind an expression in ``k``."""
    bounded = set().union(
        *(unknowns(side) for item in items if set(item.relations) & _ORDERS for side in item.sides if side is not None)
    )
    domain = [
        item for item in items if item.relations == ("in",) and item.sides[1] in _WHOLE and item.sides[0] is not None
    ]
    domain = [item for item in domain if not unknowns(item.sides[0] or item.value) & bounded]
    rest = [item for item in items if item not in domain]
    return rest if rest and domain else items


def _plain(answer: Answer) -> Answer:
    """``x=2, -3`` and ``(x,y)=(1,2),(3,4)`` with the name before each value; one statement as itself."""
    if len(answer.items) == 1:
        return _opened(answer.items[0])
    first, *later = answer.items
    left = first.sides[0]
    named = first.relations in (("=",), ("\\equiv",)) and left is not None and left.kind in ("name", "tuple")
    if named and not any(item.relations for item in later):
        return replace(
            answer,
            items=(first, *(replace(item, sides=(left, item.value), relations=first.relations) for item in later)),
        )
    return answer


def opened(node: Node) -> Answer:
    """A tuple or set as its elements."""
    return Answer(node.kind, tuple(Item((part,)) for part in node.parts), brackets=node.name)


def _opened(item: Item) -> Answer:
    """A tuple or set as its elements."""
    if not item.relations and (node := item.sides[0]) is not None:
        while node.kind == "group" and node.parts[0].kind in ("tuple", "set", "group"):
            node = node.parts[0]
        if node.kind in ("tuple", "set"):
            return opened(node)
    return Answer("one", (item,))


def _item(tokens: list[Token]) -> Item:
    modulus = ""
    for index, token in enumerate(tokens):
        if token.text == "\\pmod" or (token.text == "\\mod" and any(other.text == "\\equiv" for other in tokens)):
            tokens, modulus = tokens[:index], spelled(tokens[index + 1 :])
            break
    pieces = list(split(tokens, lambda token: token.kind != "text" and token.text in _RELATIONS))
    relations = tuple(_RELATIONS[behind] for _, behind in pieces[:-1])
    sides = [
        _side(part, last=index == len(pieces) - 1 or bool(set(relations) - {"="}))
        for index, (part, _) in enumerate(pieces)
    ]
    return Item(tuple(sides), relations, modulus)


def _side(tokens: list[Token], *, last: bool) -> Node | None:
    try:
        if spelled(tokens[:4]) == "\\begin { c a" and spelled(tokens).startswith(_CASES):
            return _cases(tokens)
        ratio = between(tokens, ":")
        if len(ratio) > 2:
            return Node("ratio", tuple(Parser(part).whole() for part in ratio))
        return Parser(tokens).whole()
    except Unreadable:
        if last or not is_name(spelled(tokens)):
            raise
        return None


def _cases(tokens: list[Token]) -> Node:
    """A value for each of several conditions, which stay text. Raises Unreadable."""
    cases = []
    for row in between(tokens[8:-8], "\\\\"):
        parts = [part for part, _ in split(row, lambda token: token.text == "&")]
        if len(parts) == 1:
            parts = _at_condition(row)
        if len(parts) == 2 and all(parts):
            value, condition = parts
            value = value[:-1] if value[-1].text in (",", ";") else value
            cases.append(Node("case", (Parser(value).whole(),), _condition(condition)))
        elif row:
            raise Unreadable("a case without its condition")
    return Node("cases", tuple(cases))


def _at_condition(row: list[Token]) -> list[list[Token]]:
    """A row without ``&``: its value and, behind words or the last comma, its condition."""
    marks = [index for index, token in enumerate(row) if token.kind == "text" or token.text == ","]
    return [row[: marks[0]], row[marks[0] :]] if marks else [row]


def _condition(tokens: list[Token]) -> str:
    """A condition in plain LaTeX without the words before it, words without case."""
    words = " ".join(f"\\text{{{token.text.casefold()}}}" if token.kind == "text" else token.text for token in tokens)
    return _IF.sub("", words.replace("\\text{is ", "\\text{")).strip(" ,.;")


def is_name(text: str) -> bool:
    """Tell whether unreadable text may name a value: it has a letter or a tuple, and no undefined or infinite part."""
    if _NOT_A_NAME.search(text):
        return False
    return bool(_NAMING.search(text)) and not _NO_VALUE.search(_SUBSCRIPT.sub("", text))


def _cycles(latex: str) -> Answer:
    """A permutation in cycles; each begins with its least number, and their order does not matter."""
    cycles = []
    for inside in re.findall(r"\(([^()]*)\)", latex):
        numbers = re.findall(r"\d+", inside)
        first = numbers.index(min(numbers, key=int))
        cycles.append(" ".join(numbers[first:] + numbers[:first]))
    flat = " ".join(cycles).split()
    order = sorted(cycles) if len(flat) == len(set(flat)) else cycles
    return Answer("cycles", tuple(Item((Node("name", (), cycle),)) for cycle in order))
