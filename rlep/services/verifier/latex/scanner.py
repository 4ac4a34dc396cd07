"""The tokens of one expression, taken from the left, and the parts that commands ask for."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction

from rlep.services.verifier.latex.nodes import Node, is_word
from rlep.services.verifier.latex.tokens import Token, Unreadable, between, closing, spelled
from rlep.services.verifier.latex.vocabulary import FONTS, FUNCTIONS, MARKS

_LETTER = re.compile(r"(?!i\Z)[^\W\d_]'*")
"""A name that is one plain letter, but for the imaginary unit."""


class Scanner(ABC):
    """A place in a list of tokens. What is in brackets is read by a scanner of its own."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(tokens)
        self._at = 0

    @abstractmethod
    def whole(self) -> Node:
        """The expression that all tokens make. Raises Unreadable."""

    @abstractmethod
    def _product(self) -> Node:
        """The factors up to the next sign."""

    @abstractmethod
    def _power(self) -> Node:
        """One factor with its exponents."""

    @abstractmethod
    def _primary(self) -> Node:
        """One operand without an exponent."""

    @abstractmethod
    def _starts_factor(self) -> bool:
        """Tell whether a factor may begin here."""

    def _read(self, tokens: Sequence[Token]) -> Node:
        """The expression that other tokens make, such as those in brackets."""
        return type(self)(tokens).whole()

    def _read_list(self, tokens: Sequence[Token], *separators: str) -> tuple[Node, ...]:
        """The expressions between separators, commas and semicolons as a rule."""
        return tuple(self._read(part) for part in between(tokens, *(separators or (",", ";"))))

    def _peek(self) -> str:
        """The text of the next token; empty at the end."""
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _next(self) -> Token:
        """Take the next token."""
        if self._at >= len(self._tokens):
            raise Unreadable("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self._peek() != text:
            return False
        self._at += 1
        return True

    def _enclosed(self, opening: int) -> list[Token]:
        """Take the tokens inside the bracket at ``opening``, and the one that closes it."""
        end = closing(self._tokens, opening)
        self._at = end + 1
        return self._tokens[opening + 1 : end]

    def _script(self) -> list[Token]:
        """Take a sub- or superscript: what is in braces or round brackets, or one token."""
        token = self._next()
        if token.text in ("{", "("):
            return self._enclosed(self._at - 1)
        if token.text in ("-", "\\frac", "\\sqrt"):
            raise Unreadable("an exponent without braces")
        if token.kind == "command" and token.text[1:] in FONTS | MARKS:
            return [token, *self._raw_argument()]
        return [token]

    def _read_script(self) -> Node:
        """Take a sub- or superscript that is an expression."""
        return self._read(self._script())

    def _bounds(self) -> tuple[list[Token], list[Token]]:
        """Take ``(subscript, superscript)``, each empty where there is none."""
        lower: list[Token] = []
        upper: list[Token] = []
        while self._peek() in ("_", "^"):
            if self._next().text == "_":
                lower = self._script()
            else:
                upper = self._script()
        return lower, upper

    def _raw_argument(self) -> list[Token]:
        """Take the argument of a command as tokens, with its braces."""
        start = self._at
        if self._next().text == "{":
            self._at = closing(self._tokens, start) + 1
        return self._tokens[start : self._at]

    def _argument(self) -> Node:
        """Take the argument of a command: what is in braces, one digit, or one token."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is not None and token.kind == "number" and token.text.isdigit():
            self._tokens[self._at : self._at + 1] = [Token("number", digit) for digit in token.text]
            return Node("number", value=Fraction(self._next().text))
        return self._primary()

    def _primed(self, name: Node) -> Node:
        """A name with the primes behind it."""
        primes = 0
        while self._peek() in ("'", "\\prime"):
            self._at += 1
            primes += 1
        return Node("name", (), name.name + "'" * primes) if primes else name

    def _applied(self, name: Node) -> Node:
        """A name with the bracket behind it: a function of what is in it, or a factor; that is decided later."""
        opening = self._at
        bracket = self._peek()
        if bracket not in ("(", "["):
            return name
        if bracket == "[" and self._tokens[closing(self._tokens, opening)].text != "]":
            return name
        inner = self._enclosed(opening)
        marks = [token.text for token in inner if token.text in ("|", ";")]
        given = marks.count("|") == 1  # as in ``P(A|B)``
        separators = "".join(mark for mark in marks if given or mark == ";")
        return Node("apply", (name, *self._read_list(inner, ",", ";", *("|" * given))), bracket + separators)

    def _is_function(self) -> bool:
        """Tell whether a function comes next: one that has a value, or a word with an operand behind it."""
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        if token.text.lstrip("\\") in FUNCTIONS and token.kind in ("command", "text") and token.text != "\\Gamma":
            return True
        start = self._at
        try:
            return self._takes_word() and (self._peek() in ("(", "[") or self._starts_operand())
        except Unreadable:
            return False
        finally:
            self._at = start

    def _takes_word(self) -> bool:
        """Take a word with its index, exponent and primes; False where something else comes next."""
        token = self._next()
        upright = token.text in ("\\mathrm", "\\rm")
        word = spelled(self._raw_argument()).replace(" ", "").strip("{}") if upright else token.text
        if not (upright or token.kind == "text") or not is_word(f"\\text{{{word}}}"):
            return False
        while self._peek() in ("_", "^", "'"):
            if self._next().text != "'":
                self._script()
        return True

    def _starts_operand(self) -> bool:
        """Tell whether the operand of a word may begin here; another word or upright letter is a factor, as in a unit."""
        if self._at >= len(self._tokens) or not self._starts_factor():
            return False
        token = self._tokens[self._at]
        return self._is_function() or not (token.kind == "text" or token.text in ("\\mathrm", "\\rm"))

    def _opens_bar(self) -> bool:
        """Tell whether the bar that comes next can open an absolute value: another one closes it."""
        return any(token.text == self._peek() for token in self._tokens[self._at + 1 :])


def is_number_set(node: Node) -> bool:
    """Tell whether this is ``\\mathbb{Z}`` or another set of numbers, alone or behind a factor."""
    last = node.parts[-1] if node.kind == "product" else node
    return last.kind == "name" and last.name.startswith("\\mathbb ") and last.name[-1] in "NZQRCF"


def beside(left: Node, right: Node) -> Node:
    """Two operands without an operator between: a mixed number, ``d/dx`` before what it acts on, or a product."""
    if right.kind == "number":
        last = left.parts[-1] if left.kind == "product" else left
        numeric = last.kind == "power" and last.parts[0].kind == last.parts[1].kind == "number"
        if last.kind in ("number", "group") or numeric:
            raise Unreadable("a number behind a number or a bracket")
    numeric = right.kind == "number" or (right.kind in ("power", "degrees") and right.parts[0].kind == "number")
    before = left.parts[-1] if left.kind == "product" else left
    if numeric and (before.name.startswith("\\text{") or (before.kind == "name" and _LETTER.fullmatch(before.name))):
        raise Unreadable("a number behind words or a letter")  # as ``2 hours 30 minutes``, in which the order counts
    if is_number_set(left) or is_number_set(right):
        raise Unreadable("a set of numbers as a factor")
    fraction = right.kind == "quotient" and right.name == "frac"
    if fraction and all(part.kind == "number" and not part.name for part in (left, *right.parts)):
        return Node("sum", (left, right))
    if left.kind == "operator":
        return Node("derivative", (right,), left.name)
    return Node("product", (*(left.parts if left.kind == "product" else (left,)), right))


def leibniz(tokens: Sequence[Token]) -> Node | None:
    """``\\frac{dy}{dx}`` as a name of its own, ``\\frac{d}{dx}`` as an operator; None for a quotient."""
    plain = [token for token in tokens if token.text not in ("{", "}", "\\mathrm", "\\mathop")]
    text = "".join(token.text if token.kind != "command" else token.text + " " for token in plain)
    for mark in ("d", "\\partial ", "\\Delta "):
        if not text.startswith(mark) or len(plain) < 3:
            continue
        seconds = [index for index, token in enumerate(plain) if index and token.text == mark.strip()]
        if not seconds or seconds[-1] == len(plain) - 1:
            continue
        top, bottom = plain[1 : seconds[0]], plain[seconds[0] :]
        if bottom[-1].kind == "number" and bottom[-2].text != "^":
            continue
        order = spelled(top[:2]) if top[:1] and top[0].text == "^" else ""
        rest = top[2:] if order else top
        variable = f"{mark.strip()} {spelled(bottom)} {order}"
        if not rest:
            return Node("operator", (), variable)
        return Node("name", (), f"{mark.strip()} {spelled(rest)} / {variable}")
    return None
