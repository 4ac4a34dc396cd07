"""A calculator as a tool, for questions that are easier to set up than to compute."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

LONGEST = 200
"""Characters of an expression."""
_BITS = 4096
"""Of a result; a power beyond is refused before it is computed."""
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


class Calculator:
    """Exact arithmetic. It has no reward: a verifier grades the answer."""

    def reset(self, **row: object) -> None:
        """Begin an episode; the question is complete as it is."""

    def evaluate(self, expression: str) -> str:
        """Compute an arithmetic expression exactly.

        Args:
            expression: Numbers with + - * / % ** and parentheses, e.g. "(17 + 4) * 3 / 2".

        Returns:
            The value: an integer, or a fraction with its decimal value.
        """
        if len(expression) > LONGEST:
            raise ValueError(f"an expression has at most {LONGEST} characters")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        return str(value) if value.denominator == 1 else f"{value} = {float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _value(left), _value(right)
            size = max(base.numerator.bit_length(), base.denominator.bit_length())
            if power.denominator != 1 or abs(power) * size > _BITS:
                raise ValueError(f"{power} is no whole power, or one too large")
            return base ** int(power)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)} is not arithmetic")
