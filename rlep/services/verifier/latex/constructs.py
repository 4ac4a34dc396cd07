"""The constructs of the grammar that begin with a command or a bracket."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

from rlep.services.verifier.latex import vocabulary
from rlep.services.verifier.latex.nodes import Node
from rlep.services.verifier.latex.scanner import Scanner, beside, is_number_set, leibniz
from rlep.services.verifier.latex.tokens import Unreadable, between, closing, spelled

_ONE = Node("number", value=Fraction(1))
_OPENING = frozenset({"(", "[", "{", "\\{"})


class Constructs(Scanner):
    """Reads what begins with a command or a bracket, which was taken before."""

    def _command(self, command: str) -> Node:
        """The node of a command and its arguments; ``command`` is given without its backslash."""
        if command in vocabulary.FUNCTIONS and (command != "Gamma" or self._peek() == "("):
            return self._function(vocabulary.FUNCTIONS[command])
        if command in vocabulary.GREEK:
            return self._applied(self._primed(Node("name", (), "\\" + vocabulary.SAME_LETTER.get(command, command))))
        if command in vocabulary.FONTS or command in vocabulary.MARKS:
            return self._decorated(command)
        if command in vocabulary.FIGURES:
            return self._figure(command)
        if command not in self._CONSTRUCTS:
            raise Unreadable(f"\\{command} is not known")
        return self._CONSTRUCTS[command](self)

    def _word(self, word: str) -> Node:
        """A function or a name that is written in words."""
        if word in vocabulary.FUNCTIONS:
            return self._function(vocabulary.FUNCTIONS[word])
        return self._applied(self._primed(Node("name", (), f"\\text{{{word}}}")))

    def _decorated(self, command: str) -> Node:
        """Letters in another font or under a mark."""
        tokens = self._raw_argument()
        inner = tokens[1:-1] if tokens[0].text == "{" else tokens
        letters = all(token.kind == "letter" or token.text[1:] in vocabulary.GREEK for token in inner)
        word = "".join(token.text for token in inner)
        if inner and letters and (len(inner) == 1 or command in vocabulary.MARKS):
            if command == "mathrm" and word in ("e", "i", "d"):
                return self._applied(Node("name", (), word))
            mark = vocabulary.SAME_MARK.get(command, command) if len(inner) == 1 else command
            return self._applied(self._primed(Node("name", (), f"\\{mark} {word}")))
        if command in ("mathrm", "rm") and inner and letters:
            return self._word(word)
        if command in vocabulary.MARKS:
            raise Unreadable(f"\\{command} of more than letters")
        return Node("group", (self._read(inner),))

    def _figure(self, command: str) -> Node:
        letters = ""
        while self._at < len(self._tokens) and self._tokens[self._at].kind == "letter":
            letters += self._next().text
        return Node("name", (), f"\\{command} {letters}")

    def _braces(self) -> Node:
        inner = self._enclosed(self._at - 1)
        for command, kind, name in (("\\over", "quotient", "frac"), ("\\choose", "binomial", "")):
            parts = between(inner, command)
            if len(parts) == 2:
                return Node(kind, (self._read(parts[0]), self._read(parts[1])), name)
        if not inner and self._peek() in ("_", "^"):
            return self._chosen()
        return self._read(inner)

    def _chosen(self) -> Node:
        """``{}_7C_2``, ``{}^7C_2`` and ``{}_7P_2``: the number of selections."""
        self._at += 1
        top = self._read_script()
        letter = self._next().text
        if letter not in ("C", "P") or self._next().text != "_":
            raise Unreadable("an empty base")
        chosen = self._read_script()
        count = Node("binomial", (top, chosen))
        return count if letter == "C" else Node("product", (count, Node("function", (chosen,), "factorial")))

    def _brackets(self, opening: str) -> Node:
        inner = self._enclosed(self._at - 1)
        delimiters = opening + self._tokens[self._at - 1].text
        parts = self._read_list(inner)
        if len(parts) > 1:
            return Node("tuple", parts, delimiters)
        if delimiters not in ("()", "[]"):
            raise Unreadable("brackets of two kinds")
        if delimiters == "[]" and parts and parts[0].kind == "name":
            raise Unreadable("a rounding or a bracket")
        return Node("group", parts)

    def _bars(self, mark: str, kind: str) -> Node:
        """The content of bars; a bar behind an operand closes, any other opens."""
        depth, index, operand = 1, self._at, False
        while index < len(self._tokens):
            token = self._tokens[index]
            if token.text == mark:
                depth += -1 if operand else 1
                if depth == 0:
                    inner = self._tokens[self._at : index]
                    self._at = index + 1
                    return Node(kind, (self._read(inner),))
            elif token.text in _OPENING:
                index = closing(self._tokens, index)
                operand = True
            elif token.kind == "mark":
                operand = token.text in ("'", "!")
            else:
                operand = token.text not in vocabulary.TIMES | vocabulary.OVER
            index += 1
        raise Unreadable("a bar that does not close")

    def _set(self) -> Node:
        inner = self._enclosed(self._at - 1)
        return Node("set", self._read_list(inner) if inner else ())

    def _rounded(self, name: str) -> Node:
        return Node("function", (self._read(self._enclosed(self._at - 1)),), name)

    def _fraction(self) -> Node:
        start = self._at
        top, bottom = self._argument(), self._argument()
        if is_number_set(top) or is_number_set(bottom):
            raise Unreadable("a quotient of sets")
        return leibniz(self._tokens[start : self._at]) or Node("quotient", (top, bottom), "frac")

    def _root(self) -> Node:
        index = Node("number", value=Fraction(2))
        if self._peek() == "[":
            index = self._read(self._enclosed(self._at))
        if len(self._peek()) > 1 and self._peek().isdigit():
            raise Unreadable("a root of digits without braces")
        return Node("root", (self._argument(), index))

    def _function(self, name: str) -> Node:
        base = exponent = None
        if name == "log" and self._takes("_"):
            base = self._read_script()
        if self._takes("^"):
            exponent = self._read_script()
            if exponent == Node("negative", (_ONE,)):
                if name not in vocabulary.INVERSE:
                    raise Unreadable("an inverse or a quotient")
                name, exponent = vocabulary.INVERSE[name], None
        arguments = self._arguments()
        if base is not None:
            arguments, name = (*arguments, base), "logarithm"
        size = name == "abs" and len(arguments) == 1
        node = Node("absolute", arguments) if size else Node("function", arguments, name)
        return node if exponent is None else Node("power", (node, exponent))

    def _arguments(self) -> tuple[Node, ...]:
        """The operands of a function: the bracket behind it, or the factors up to the next operator or function."""
        opening = self._peek()
        if opening in _OPENING:
            return self._read_list(self._enclosed(self._at))
        node: Node | None = None
        while self._starts_factor() and not self._is_function():
            factor = self._power()
            node = factor if node is None else beside(node, factor)
            if opening == "|":
                break
        if node is None and self._is_function():
            node = self._power()  # ``\ln\ln x``
        if node is None:
            raise Unreadable("a function of nothing")
        return (node,)

    def _sum_or_product(self, kind: str) -> Node:
        lower, upper = self._bounds()
        if len(lower) < 3 or lower[1].text != "=" or not upper:
            raise Unreadable("a sum without bounds")
        low, high = self._read(lower[2:]), self._read(upper)
        return Node(kind, (low, high, self._product()), lower[0].text)

    def _integral(self) -> Node:
        lower, upper = self._bounds()
        depth = 0
        for index in range(self._at, len(self._tokens) - 1):
            token, variable = self._tokens[index : index + 2]
            depth += (token.text in ("{", "(")) - (token.text in ("}", ")"))
            if depth == 0 and token.text == "d" and variable.kind == "letter":
                body = self._read(self._tokens[self._at : index]) if index > self._at else _ONE
                self._at = index + 2
                if bool(lower) != bool(upper):
                    raise Unreadable("an integral with one bound")
                bounds = (self._read(lower), self._read(upper)) if lower and upper else ()
                return Node("integral", (body, *bounds), variable.text)
        raise Unreadable("an integral without its variable")

    def _limit(self) -> Node:
        lower, _ = self._bounds()
        if len(lower) < 3 or lower[1].text not in ("\\to", "\\rightarrow"):
            raise Unreadable("a limit without its point")
        point = lower[2:]
        side = "".join(token.text for token in point[1:]).strip("^{}")
        if side in ("+", "-") and point[0].text not in ("+", "-"):  # ``0^+``; the side of ``+\infty`` is a sign
            point = point[:1]
        else:
            side = ""
        return Node("limit", (self._read(point), self._product()), lower[0].text + side)

    def _environment(self) -> Node:
        kind = spelled(self._raw_argument()).replace(" ", "").strip("{}")
        if kind == "array":
            self._raw_argument()  # the columns
        start = self._at
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "\\begin") - (text == "\\end")
        inner = self._tokens[start : self._at - 1]
        self._raw_argument()
        if kind not in vocabulary.MATRICES and kind != "vmatrix":
            raise Unreadable(f"{kind} is not known")
        cells = [self._read_list(row, "&") for row in between(inner, "\\\\") if row]
        if len({len(row) for row in cells}) != 1:
            raise Unreadable("rows of different lengths")
        matrix = Node("matrix", tuple(Node("row", row) for row in cells))
        return Node("function", (matrix,), "det") if kind == "vmatrix" else matrix

    _CONSTRUCTS: ClassVar[dict[str, Callable[[Constructs], Node]]] = {
        **dict.fromkeys(("frac", "tfrac", "dfrac", "cfrac"), _fraction),
        **dict.fromkeys(
            ("binom", "dbinom", "tbinom"), lambda self: Node("binomial", (self._argument(), self._argument()))
        ),
        "sqrt": _root,
        "pi": lambda self: Node("constant", (), "pi"),
        "infty": lambda self: Node("constant", (), "infty"),
        "emptyset": lambda self: Node("set"),
        "{": _set,
        "lfloor": lambda self: self._rounded("floor"),
        "lceil": lambda self: self._rounded("ceiling"),
        "|": lambda self: self._bars("\\|", "norm"),
        "sum": lambda self: self._sum_or_product("total"),
        "prod": lambda self: self._sum_or_product("running product"),
        "int": _integral,
        "lim": _limit,
        "begin": _environment,
    }
    """Command -> what reads the rest of its construct."""
