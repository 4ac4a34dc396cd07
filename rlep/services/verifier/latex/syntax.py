"""A small grammar of mathematical notation in which nothing is lost: case, fonts, primes, order and application stay.

What it has no rule for is ``Unreadable``: two numbers side by side, dots, operators that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rlep.services.verifier.latex.tokens import Token, Unreadable, closing, lex, spelled, split

FUNCTIONS = {
    name: name
    for name in (
        "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth ln log exp gcd lcm max min det Re Im "
        "arg Gamma"
    ).split()
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arctg": "arctan", "tg": "tan", "ctg": "cot"}
"""Functions that have a value, under the names people use."""
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_SET_OPERATORS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference", "\\backslash": "difference"}
_SIGNS = frozenset({"+", "-", "\\pm", "\\mp"})
_TIMES = frozenset({"\\cdot", "\\times", "*", "\\ast"})
_OVER = frozenset({"/", "\\div", ":"})
_FONTS = frozenset({"mathbf", "boldsymbol", "bm", "mathit", "mathsf", "mathtt", "mathrm", "mathnormal", "pmb", "ensuremath", "rm", "bf"})
"""Fonts: of a single letter they make another name, of anything else nothing."""
_MARKS = frozenset(
    "vec hat bar tilde dot ddot overline underline overrightarrow widehat widetilde mathcal mathbb mathfrak mathscr breve check".split()
)
"""Marks: of letters they make another name, of anything else they are not read."""
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho varrho sigma varsigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar aleph imath jmath partial".split()
)
_SAME_LETTER = {"varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "varrho": "rho", "ell": "l"}
_FIGURES = frozenset({"\\angle", "\\triangle", "\\measuredangle", "\\square", "\\odot"})
"""Marks before the letters of a figure, which together are one name."""
_MATRICES = frozenset({"pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array"})
_NO_FACTOR = frozenset({"\\}", "\\rfloor", "\\rceil", "\\end", "\\%", "\\\\", "\\pm", "\\mp", "\\bmod", "\\mod", "\\div"}) | _TIMES
_TRANSPOSED = frozenset({"\\top", "\\intercal", "\\mathsf T", "\\mathrm T", "\\mathsf { T }", "\\mathrm { T }"})


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and its operands."""

    kind: str
    parts: tuple[Node, ...] = ()
    name: str = ""
    """Of a name, function or bracket; the digits of a decimal; the variable of a sum."""
    value: Fraction = Fraction(0)
    """Of a number."""


class Parser:
    """Reads one expression; brackets are read by parsers of their own."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(tokens)
        self._at = 0

    def whole(self) -> Node:
        """The expression that all tokens make. Raises Unreadable."""
        node = self._sets()
        if self._at < len(self._tokens):
            raise Unreadable(f"{self._peek()} is not expected")
        return node

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise Unreadable("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _sets(self) -> Node:
        left = self._sum()
        while (operator := self._peek()) in _SET_OPERATORS:
            self._at += 1
            left = Node(_SET_OPERATORS[operator], (left, self._sum()))
        return left

    def _sum(self) -> Node:
        parts: list[Node] = []
        while True:
            signs = []
            while self._peek() in _SIGNS:
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

    def _signed(self) -> Node:
        """An operand that may have a sign of its own, as in ``3\\cdot -2``."""
        if self._peek() in ("-", "+"):
            sign = self._next().text
            operand = self._power()
            return Node("negative", (operand,)) if sign == "-" else operand
        return self._power()

    def _product(self) -> Node:
        left = self._power()
        while True:
            operator = self._peek()
            if operator in _TIMES:
                self._at += 1
                left = Node("cross" if operator == "\\times" else "dot", (left, self._signed()))
            elif operator in _OVER:
                self._at += 1
                left = Node("quotient", (left, self._signed()))
            elif operator in ("\\bmod", "\\mod"):
                self._at += 1
                left = Node("modulo", (left, self._signed()))
            elif self._starts_factor():
                left = self._beside(left, self._power())
            else:
                return left

    @staticmethod
    def _beside(left: Node, right: Node) -> Node:
        """Two operands without an operator between: a mixed number, an operator ``d/dx`` before what it acts on, or a product."""
        if right.kind == "number":
            last = left.parts[-1] if left.kind == "product" else left
            if last.kind == "number" or (last.kind == "power" and last.parts[1].kind == "number" and last.parts[0].kind == "number"):
                raise Unreadable("two numbers side by side")
        if left.kind == "number" and not left.name and right.kind == "quotient" and right.name == "frac":
            if all(part.kind == "number" and not part.name for part in right.parts):
                return Node("sum", (left, right))
        if left.kind == "operator":
            return Node("derivative", (right,), left.name)
        return Node("product", (*(left.parts if left.kind == "product" else (left,)), right))

    def _starts_factor(self) -> bool:
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        if token.kind in ("number", "letter", "text"):
            return True
        if token.kind == "mark":
            return token.text in "({[" or (token.text == "|" and self._opens_bar(self._at))
        if token.text == "\\|":
            return self._opens_bar(self._at)
        return token.text not in _SET_OPERATORS and token.text not in _NO_FACTOR

    def _power(self) -> Node:
        base = self._postfix(self._primary())
        while self._peek() == "^":
            self._at += 1
            exponent = self._script()
            base = self._postfix(self._raised(base, exponent))
        return base

    def _raised(self, base: Node, exponent: list[Token]) -> Node:
        text = spelled(exponent)
        if text == "\\circ":
            return Node("degrees", (base,))
        if text in _TRANSPOSED:
            return Node("transpose", (base,))
        if exponent and all(token.text == "\\prime" for token in exponent) and base.kind == "name":
            return self._applied(Node("name", (), base.name + "'" * len(exponent)))
        if base.kind == "name" and len(exponent) == 3 and exponent[0].text == "(" and exponent[1].text.isdigit():
            return self._applied(Node("name", (), base.name + "'" * min(int(exponent[1].text), 99)))
        raised = Node("power", (base, Parser(exponent).whole()))
        return self._applied(raised) if base.kind == "name" else raised

    def _postfix(self, node: Node) -> Node:
        while True:
            mark = self._peek()
            if mark == "!":
                self._at += 1
                if self._peek() == "!":
                    self._at += 1
                    node = Node("function", (node,), "double factorial")
                else:
                    node = Node("function", (node,), "factorial")
            elif mark in ("%", "\\%"):
                self._at += 1
                node = Node("quotient", (node, Node("number", value=Fraction(100))))
            elif mark == "_" and node.kind == "name":
                self._at += 1
                node = Node("name", (), f"{node.name}_{{{spelled(self._script())}}}")
                node = self._applied(self._primed(node))
            else:
                return node

    def _script(self) -> list[Token]:
        """The tokens of a sub- or superscript: those in braces, or one."""
        token = self._next()
        if token.text == "{":
            end = closing(self._tokens, self._at - 1)
            inner = list(self._tokens[self._at : end])
            self._at = end + 1
            return inner
        if token.text == "-" or token.text in ("\\frac", "\\sqrt"):
            raise Unreadable("an exponent without braces")
        if token.kind == "command" and token.text[1:] in _FONTS | _MARKS:
            return [token, *self._raw_argument()]
        return [token]

    def _raw_argument(self) -> list[Token]:
        start = self._at
        if self._next().text == "{":
            self._at = closing(self._tokens, start) + 1
        return list(self._tokens[start : self._at])

    def _argument(self) -> Node:
        """An argument of a command: what is in braces, one digit, or one token."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is not None and token.kind == "number" and token.text.isdigit():
            self._tokens[self._at : self._at + 1] = [Token("number", digit) for digit in token.text]
            return Node("number", value=Fraction(self._next().text))
        return self._primary()

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "number":
            return Node("number", (), token.text if "." in token.text else "", Fraction(token.text))
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

    def _rest_of_group(self, first: str) -> str:
        """The other capitals of a name such as ``SO`` in ``SO(3)``."""
        end = self._at
        while end < len(self._tokens) and self._tokens[end].kind == "letter" and self._tokens[end].text.isupper():
            end += 1
        if not first.isupper() or end == self._at or end >= len(self._tokens) or self._tokens[end].text != "(":
            return ""
        rest = "".join(token.text for token in self._tokens[self._at : end])
        self._at = end
        return rest

    def _primed(self, name: Node) -> Node:
        primes = 0
        while self._peek() in ("'", "\\prime"):
            self._at += 1
            primes += 1
        return Node("name", (), name.name + "'" * primes) if primes else name

    def _applied(self, name: Node) -> Node:
        """A name with the bracket behind it: a function of what is in it, or a factor; that is decided later."""
        if self._peek() not in ("(", "["):
            return name
        opening = self._at
        end = closing(self._tokens, opening)
        if self._tokens[opening].text == "[" and self._tokens[end].text != "]":
            return name
        inner = self._tokens[opening + 1 : end]
        self._at = end + 1
        marks = {",", ";", "|"} if sum(token.text == "|" for token in inner) == 1 else {",", ";"}
        arguments = [Parser(part).whole() for part, _ in split(inner, lambda token: token.text in marks)]
        return Node("apply", (name, *arguments), self._tokens[opening].text)

    def _word(self, word: str) -> Node:
        if word in FUNCTIONS:
            return self._function(FUNCTIONS[word])
        return self._applied(self._primed(Node("name", (), f"\\text{{{word}}}")))

    def _braces(self) -> Node:
        end = closing(self._tokens, self._at - 1)
        inner = self._tokens[self._at : end]
        self._at = end + 1
        for command, kind in (("\\over", "quotient"), ("\\choose", "binomial")):
            parts = [part for part, _ in split(inner, lambda token, command=command: token.text == command)]  # type: ignore[misc]
            if len(parts) == 2:
                return Node(kind, (Parser(parts[0]).whole(), Parser(parts[1]).whole()), "frac" if kind == "quotient" else "")
        if not inner and self._peek() in ("_", "^"):
            return self._chosen()
        return Parser(inner).whole()

    def _chosen(self) -> Node:
        """``{}_7C_2`` and ``{}^7C_2``: a binomial coefficient."""
        self._at += 1
        top = Parser(self._script()).whole()
        if self._next().text != "C" or self._next().text != "_":
            raise Unreadable("an empty base")
        return Node("binomial", (top, Parser(self._script()).whole()))

    def _brackets(self, opening: str) -> Node:
        end = closing(self._tokens, self._at - 1)
        inner = self._tokens[self._at : end]
        delimiters = opening + self._tokens[end].text
        self._at = end + 1
        parts = [Parser(part).whole() for part, _ in split(inner, lambda token: token.text in (",", ";"))]
        if len(parts) > 1:
            return Node("tuple", tuple(parts), delimiters)
        if delimiters not in ("()", "[]"):
            raise Unreadable("brackets of two kinds")
        return Node("group", tuple(parts))

    def _opens_bar(self, at: int) -> bool:
        """Whether the bar at this place can open an absolute value: another one closes it."""
        return any(token.text == self._tokens[at].text for token in self._tokens[at + 1 :])

    def _bars(self, mark: str, kind: str) -> Node:
        depth, index, operand = 1, self._at, False
        while index < len(self._tokens):
            token = self._tokens[index]
            if token.text == mark:
                depth += -1 if operand else 1
                if depth == 0:
                    inner = self._tokens[self._at : index]
                    self._at = index + 1
                    return Node(kind, (_collection(inner),))
                operand = depth > 0 and operand
            elif token.text in ("(", "[", "{", "\\{"):
                index = closing(self._tokens, index)
                operand = True
            else:
                operand = token.kind != "mark" and token.text not in _TIMES | _OVER or token.text in (")", "]", "}", "'", "!")
            index += 1
        raise Unreadable("a bar that does not close")

    def _command(self, command: str) -> Node:  # noqa: C901, PLR0912 - one branch for each construct of the grammar
        if command in ("frac", "tfrac", "dfrac", "cfrac"):
            return self._fraction()
        if command == "sqrt":
            return self._root()
        if command in ("binom", "dbinom", "tbinom"):
            return Node("binomial", (self._argument(), self._argument()))
        if command in FUNCTIONS and command != "Gamma":
            return self._function(FUNCTIONS[command])
        if command == "Gamma" and self._peek() == "(":
            return self._function("Gamma")
        if command in ("pi", "infty"):
            return Node("constant", (), command)
        if command in _GREEK:
            return self._applied(self._primed(Node("name", (), "\\" + _SAME_LETTER.get(command, command))))
        if command in _FONTS or command in _MARKS:
            return self._decorated(command)
        if command == "{":
            return self._set()
        if command in ("lfloor", "lceil"):
            end = closing(self._tokens, self._at - 1)
            inner = self._tokens[self._at : end]
            self._at = end + 1
            return Node("function", (Parser(inner).whole(),), "floor" if command == "lfloor" else "ceiling")
        if command == "|":
            return self._bars("\\|", "norm")
        if command in ("sum", "prod"):
            return self._big(command)
        if command == "int":
            return self._integral()
        if command == "lim":
            return self._limit()
        if command == "begin":
            return self._environment()
        if command == "emptyset":
            return Node("set")
        if "\\" + command in _FIGURES:
            return self._figure(command)
        raise Unreadable(f"\\{command} is not known")

    def _fraction(self) -> Node:
        start = self._at
        top, bottom = self._argument(), self._argument()
        derivative = _leibniz(self._tokens[start : self._at])
        if derivative is not None:
            return derivative
        return Node("quotient", (top, bottom), "frac")

    def _root(self) -> Node:
        index = Node("number", value=Fraction(2))
        if self._peek() == "[":
            end = closing(self._tokens, self._at)
            index = Parser(self._tokens[self._at + 1 : end]).whole()
            self._at = end + 1
        if len(self._peek()) > 1 and self._peek().isdigit():
            raise Unreadable("a root of digits without braces")
        return Node("root", (self._argument(), index))

    def _function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        if name == "log" and self._peek() == "_":
            self._at += 1
            base = Parser(self._script()).whole()
        if self._peek() == "^":
            self._at += 1
            exponent = Parser(self._script()).whole()
            if exponent == Node("negative", (Node("number", value=Fraction(1)),)):
                if name not in _INVERSE:
                    raise Unreadable("an inverse or a quotient")
                name, exponent = _INVERSE[name], None
        arguments = self._arguments()
        if base is not None:
            arguments, name = (*arguments, base), "logarithm"
        node = Node("function", arguments, name)
        return node if exponent is None else Node("power", (node, exponent))

    def _arguments(self) -> tuple[Node, ...]:
        """What a function is applied to: the bracket behind it, or the factors up to the next operator or function."""
        opening = self._peek()
        if opening in ("(", "[", "{", "\\{"):
            end = closing(self._tokens, self._at)
            inner = self._tokens[self._at + 1 : end]
            self._at = end + 1
            return tuple(Parser(part).whole() for part, _ in split(inner, lambda token: token.text in (",", ";")))
        node: Node | None = None
        while self._starts_factor() and not self._is_function():
            factor = self._power()
            node = factor if node is None else self._beside(node, factor)
            if opening == "|":
                break
        if node is None and self._is_function():
            node = self._power()  # ``\ln\ln x``
        if node is None:
            raise Unreadable("a function of nothing")
        return (node,)

    def _is_function(self) -> bool:
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        return token.text.lstrip("\\") in FUNCTIONS and token.kind in ("command", "text") and token.text != "\\Gamma"

    def _decorated(self, command: str) -> Node:
        tokens = self._raw_argument()
        inner = tokens[1:-1] if tokens and tokens[0].text == "{" else tokens
        letters = all(token.kind == "letter" or token.text[1:] in _GREEK for token in inner)
        if inner and letters and (len(inner) == 1 or command in _MARKS):
            if command == "mathrm" and spelled(inner) in ("e", "i", "d"):
                return self._applied(Node("name", (), spelled(inner)))
            return self._applied(self._primed(Node("name", (), f"\\{command} {''.join(token.text for token in inner)}")))
        word = "".join(token.text for token in inner)
        if command in ("mathrm", "rm") and inner and letters:
            return self._word(word)
        if command in _MARKS:
            raise Unreadable(f"\\{command} of more than letters")
        return Node("group", (Parser(inner).whole(),))

    def _set(self) -> Node:
        end = closing(self._tokens, self._at - 1)
        inner = self._tokens[self._at : end]
        self._at = end + 1
        return Node("set", tuple(Parser(part).whole() for part, _ in split(inner, lambda token: token.text in (",", ";"))) if inner else ())

    def _figure(self, command: str) -> Node:
        letters = ""
        while self._at < len(self._tokens) and self._tokens[self._at].kind == "letter":
            letters += self._next().text
        return Node("name", (), f"\\{command} {letters}")

    def _bounds(self) -> tuple[list[Token], list[Token]]:
        lower: list[Token] = []
        upper: list[Token] = []
        while self._peek() in ("_", "^"):
            if self._next().text == "_":
                lower = self._script()
            else:
                upper = self._script()
        return lower, upper

    def _big(self, command: str) -> Node:
        lower, upper = self._bounds()
        if len(lower) < 3 or lower[1].text != "=" or not upper:
            raise Unreadable("a sum without bounds")
        low, high = Parser(lower[2:]).whole(), Parser(upper).whole()
        return Node("total" if command == "sum" else "running product", (low, high, self._product()), lower[0].text)

    def _integral(self) -> Node:
        lower, upper = self._bounds()
        depth = 0
        for index in range(self._at, len(self._tokens) - 1):
            depth += (self._tokens[index].text in ("{", "(")) - (self._tokens[index].text in ("}", ")"))
            if depth == 0 and self._tokens[index].text == "d" and self._tokens[index + 1].kind == "letter":
                body = Parser(self._tokens[self._at : index]).whole() if index > self._at else Node("number", value=Fraction(1))
                variable = self._tokens[index + 1].text
                self._at = index + 2
                bounds = (Parser(lower).whole(), Parser(upper).whole()) if lower and upper else ()
                return Node("integral", (body, *bounds), variable)
        raise Unreadable("an integral without its variable")

    def _limit(self) -> Node:
        lower, _ = self._bounds()
        if len(lower) < 3 or lower[1].text not in ("\\to", "\\rightarrow"):
            raise Unreadable("a limit without its point")
        side = "".join(token.text for token in lower[3:]).strip("^{}")
        if side not in ("", "+", "-") and lower[2].text != "-" and lower[2].text != "+":
            point, side = Parser(lower[2:]).whole(), ""
        else:
            rest = lower[2:] if lower[2].text in "+-" else lower[2:3]
            point = Parser(rest).whole()
            side = side if rest == lower[2:3] else ""
        return Node("limit", (point, self._product()), lower[0].text + side)

    def _environment(self) -> Node:
        kind = spelled(self._raw_argument()).replace(" ", "").strip("{}")
        if kind == "array":
            self._raw_argument()
        start = self._at
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "\\begin") - (text == "\\end")
        inner = self._tokens[start : self._at - 1]
        self._raw_argument()
        if kind not in _MATRICES and kind != "vmatrix":
            raise Unreadable(f"{kind} is not known")
        rows = [row for row, _ in split(inner, lambda token: token.text == "\\\\") if row]
        cells = [[Parser(cell).whole() for cell, _ in split(row, lambda token: token.text == "&")] for row in rows]
        if not cells or len({len(row) for row in cells}) != 1:
            raise Unreadable("rows of different lengths")
        matrix = Node("matrix", tuple(Node("row", tuple(row)) for row in cells))
        return Node("function", (matrix,), "det") if kind == "vmatrix" else matrix


def _collection(tokens: Sequence[Token]) -> Node:
    return Parser(tokens).whole()


def _leibniz(tokens: Sequence[Token]) -> Node | None:
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
        return Node("operator", (), variable) if not rest else Node("name", (), f"{mark.strip()} {spelled(rest)} / {variable}")
    return None


def parse(latex: str) -> Node:
    """The expression that plain LaTeX makes. Raises Unreadable."""
    return Parser(lex(latex)).whole()
