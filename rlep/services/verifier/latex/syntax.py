"""A small grammar of mathematical notation in which nothing is lost: case, fonts, primes, order and application stay.

What it has no rule for is ``Unreadable``: two numbers side by side, dots, operators that it does not know.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rlep.services.verifier.latex import vocabulary
from rlep.services.verifier.latex.constructs import Constructs
from rlep.services.verifier.latex.nodes import Node, is_word
from rlep.services.verifier.latex.scanner import beside
from rlep.services.verifier.latex.tokens import Token, Unreadable, spelled

_MAX_PRIMES = 99
_SELECTION = re.compile(r"([CAP])_\{([3-9]|[1-9]\d{1,3})\}")
"""The base of ``C_5^2`` and ``A_5^2``, which count selections without and with their order."""


class Parser(Constructs):
    """Reads operators, from those that bind least to those that bind most, and single tokens."""

    def whole(self) -> Node:
        """The expression that all tokens make. Raises Unreadable."""
        node = self._sets()
        if self._at < len(self._tokens):
            raise Unreadable(f"{self._peek()} is not expected")
        return node

    def _sets(self) -> Node:
        left = self._sum()
        while kind := vocabulary.SET_OPERATORS.get(self._peek()):
            self._at += 1
            left = Node(kind, (left, self._sum()))
        return left

    def _sum(self) -> Node:
        parts: list[Node] = []
        while True:
            signs = []
            while self._peek() in vocabulary.SIGNS:
                signs.append(self._next().text)
            if parts and not signs:
                break
            part = self._product()
            if signs.count("-") % 2:
                part = Node("negative", (part,))
            if either := [sign for sign in signs if sign in ("\\pm", "\\mp")]:
                part = Node("either", (part,), either[0])
            parts.append(part)
        return parts[0] if len(parts) == 1 else Node("sum", tuple(parts))

    def _product(self) -> Node:
        left = self._power()
        while True:
            operator = self._peek()
            if kind := _kind_of(operator):
                self._at += 1
                left = Node(kind, (left, self._signed()))
            elif self._starts_factor():
                left = beside(left, self._power())
            else:
                return left

    def _signed(self) -> Node:
        """An operand that may have a sign of its own, as in ``3\\cdot -2``."""
        if self._takes("-"):
            return Node("negative", (self._power(),))
        self._takes("+")
        return self._power()

    def _starts_factor(self) -> bool:
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        if token.kind in ("number", "letter", "text"):
            return True
        if token.text in ("|", "\\|"):
            return self._opens_bar()
        if token.kind == "mark":
            return token.text in ("(", "{", "[")
        return token.text not in vocabulary.SET_OPERATORS and token.text not in vocabulary.NO_FACTOR

    def _power(self) -> Node:
        base = self._postfix(self._primary())
        while self._takes("^"):
            exponent = self._script()
            if base.kind == "name" and self._takes("_"):
                base = self._indexed(base)  # ``v^2_0``
            base = self._postfix(self._raised(base, exponent))
        name = base.parts[0] if base.kind == "power" else base
        if name.kind != "name" or not is_word(name.name) or not self._starts_operand():
            return base
        if self._tokens[self._at].kind == "number":
            raise Unreadable("a number behind words")
        return Node("apply", (base, *self._arguments()), "(")  # ``\operatorname{erf} x``

    def _indexed(self, name: Node) -> Node:
        """A name with the index that comes next."""
        return Node("name", (), f"{name.name}_{{{spelled(self._script())}}}")

    def _raised(self, base: Node, exponent: list[Token]) -> Node:
        """A base with its exponent, which may be a mark: of degrees, a transpose, or a derivative."""
        text = spelled(exponent)
        if text == "\\circ":
            return Node("degrees", (base,))
        if text in vocabulary.TRANSPOSED:
            return Node("transpose", (base,))
        if base.kind != "name":
            return Node("power", (base, self._read(exponent)))
        if (chosen := _SELECTION.fullmatch(base.name)) and text.isdigit() and int(text) <= int(chosen[2]):
            return _selection(chosen[1], int(chosen[2]), int(text))
        if exponent and all(token.text == "\\prime" for token in exponent):
            return self._applied(Node("name", (), base.name + "'" * len(exponent)))
        if len(exponent) == 3 and exponent[0].text == "(" and exponent[1].text.isdigit():
            return self._applied(Node("name", (), base.name + "'" * min(int(exponent[1].text), _MAX_PRIMES)))
        return self._applied(Node("power", (base, self._read(exponent))))

    def _postfix(self, node: Node) -> Node:
        """An operand with the factorials, per cent signs and subscripts behind it."""
        while True:
            if self._takes("!"):
                node = Node("function", (node,), "double factorial" if self._takes("!") else "factorial")
            elif self._takes("%") or self._takes("\\%"):
                node = Node("quotient", (node, Node("number", value=Fraction(100))))
            elif node.kind == "name" and self._takes("_"):
                node = self._applied(self._primed(self._indexed(node)))
            else:
                return node

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "number":
            return Node("number", (), token.text if "." in token.text else "", Fraction(token.text))
        if token.kind == "letter" and (differential := self._differential(token.text)):
            return Node("name", (), differential)
        if token.kind == "letter":
            return self._applied(self._primed(Node("name", (), token.text + self._rest_of_group(token.text))))
        if token.kind == "text":
            return self._word(token.text)
        if token.kind == "command":
            return self._command(token.text[1:])
        if token.text == "{":
            return self._braces()
        if token.text in ("(", "["):
            return self._brackets(token.text)
        if token.text == "|":
            return self._bars("|", "absolute")
        raise Unreadable(f"{token.text} is not expected")

    def _differential(self, letter: str) -> str:
        """Take the letter behind a ``d`` that does not stand in a row of other letters: ``dx`` is one name."""
        behind = self._tokens[self._at] if self._at < len(self._tokens) else None
        before = self._tokens[self._at - 2] if self._at > 1 else None
        if letter != "d" or behind is None or behind.text not in vocabulary.DIFFERENTIALS:
            return ""
        if before is not None and before.text in ("a", "b", "c"):
            return ""
        self._at += 1
        return f"d {behind.text}"

    def _rest_of_group(self, first: str) -> str:
        """Take the other capitals of a name such as ``SO`` in ``SO(3)``."""
        end = self._at
        while end < len(self._tokens) and self._tokens[end].kind == "letter" and self._tokens[end].text.isupper():
            end += 1
        if not first.isupper() or end == self._at or end >= len(self._tokens) or self._tokens[end].text != "(":
            return ""
        rest = "".join(token.text for token in self._tokens[self._at : end])
        self._at = end
        return rest


def _selection(letter: str, total: int, chosen: int) -> Node:
    """The number of selections, ``A`` and ``P`` with their order."""
    top, bottom = (Node("number", value=Fraction(number)) for number in (total, chosen))
    count = Node("binomial", (top, bottom))
    return count if letter == "C" else Node("product", (count, Node("function", (bottom,), "factorial")))


def _kind_of(operator: str) -> str:
    """The operation of an operator between two factors; empty for anything else."""
    if operator in vocabulary.TIMES:
        return "cross" if operator == "\\times" else "dot"
    if operator in vocabulary.OVER:
        return "quotient"
    return "modulo" if operator in vocabulary.MODULO else ""
