"""Plain LaTeX as tokens, and tokens as parts between separators. Nothing is dropped but white space."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

TEXT_COMMANDS = frozenset(
    {"text", "mbox", "hbox", "textrm", "textnormal", "textit", "textbf", "textsf", "texttt", "operatorname"}
)
"""Commands whose argument is words."""

_TOKEN = re.compile(
    r"(?P<space>\s+|\\[,;:> ]|~|\\q?quad(?![a-zA-Z]))|(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<command>[a-zA-Z]+|.)"
    r"|(?P<letter>[^\W\d_])|(?P<mark>.)",
    re.DOTALL,
)
_OPENING = frozenset({"{", "(", "[", "\\{", "\\lfloor", "\\lceil", "\\begin"})
_CLOSING = frozenset({"}", ")", "]", "\\}", "\\rfloor", "\\rceil", "\\end"})


class Unreadable(ValueError):
    """The grammar has no such thing."""


class Token(NamedTuple):
    """One token: ``number``, ``letter``, ``command`` (its text begins with a backslash), ``mark`` or ``text`` (words)."""

    kind: str
    text: str


def lex(latex: str) -> list[Token]:
    """All tokens of plain LaTeX. Raises Unreadable for braces that do not close."""
    tokens: list[Token] = []
    position = 0
    while match := _TOKEN.match(latex, position):
        position = match.end()
        kind = match.lastgroup or "mark"
        if kind == "space":
            continue
        if kind == "command" and match["command"] in TEXT_COMMANDS:
            words, position = _argument(latex, position)
            if words == "!":
                raise Unreadable("an exclamation mark that is no factorial")
            tokens.append(Token("text", words))
        else:
            tokens.append(Token(kind, match.group()))
    return tokens


def _argument(latex: str, position: int) -> tuple[str, int]:
    """``(content, position behind it)`` of the braces that follow."""
    start = latex.find("{", position)
    if start < 0 or latex[position:start].strip():
        raise Unreadable("words without braces")
    depth = 0
    for index in range(start, len(latex)):
        depth += (latex[index] == "{") - (latex[index] == "}")
        if depth == 0:
            return " ".join(latex[start + 1 : index].split()), index + 1
    raise Unreadable("braces that do not close")


def closing(tokens: Sequence[Token], start: int) -> int:
    """The index of the token that closes the bracket at ``start``. Raises Unreadable."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].text in _OPENING) - (tokens[index].text in _CLOSING)
        if depth == 0:
            return index
    raise Unreadable("a bracket that does not close")


def split(tokens: Sequence[Token], separates: Callable[[Token], bool]) -> Iterator[tuple[list[Token], str]]:
    """``(part, separator behind it)`` for each part outside of brackets; the last separator is empty."""
    part: list[Token] = []
    depth = 0
    for token in tokens:
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth == 0 and separates(token):
            yield part, token.text
            part = []
        else:
            part.append(token)
    yield part, ""


def between(tokens: Sequence[Token], *separators: str) -> list[list[Token]]:
    """The parts between separators outside of brackets."""
    return [part for part, _ in split(tokens, lambda token: token.text in separators)]


def spelled(tokens: Sequence[Token]) -> str:
    """Tokens as text, to compare and to name."""
    return " ".join(token.text for token in tokens)
