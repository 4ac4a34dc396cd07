"""References of the profile ``code``, taken apart: what the program is shown of a test, and what its answer is compared with.

``assert f(2) == 4`` becomes the expression ``f(2)``, which the program's process evaluates, and the value 4, which never
leaves this one. A test that cannot be parted so is refused: the program could read what is expected, or say that it passed.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlep.core.errors import DataError

FORM = 'gold is no JSON of the form {"tests": ["assert f(1) == 2", …]} or {"io": [{"stdin": …, "stdout": …}, …]}'

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda value, wanted: type(value) is type(wanted) and value == wanted,
    ast.IsNot: lambda value, wanted: type(value) is not type(wanted) or value != wanted,
    ast.In: lambda value, wanted: value in wanted,
    ast.NotIn: lambda value, wanted: value not in wanted,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Is: ast.Is,
    ast.IsNot: ast.IsNot,
}
_BUILDERS: dict[str, Callable[..., Any]] = {
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "float": float,
    "sorted": sorted,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_DEFAULT_RELATIVE = 1e-9  # of math.isclose
_APPROX_RELATIVE, _APPROX_ABSOLUTE = 1e-6, 1e-12  # of pytest.approx

_MOST_ITEMS = 10**6
"""Items of a list or text that a test may compute here, before it is computed; those of a list in a list count as often as
it is there."""
_MOST_IN_ALL = 8 * _MOST_ITEMS
"""Items that the tests of a reference may compute together."""
_left: ContextVar[int] = ContextVar("left", default=_MOST_IN_ALL)


@dataclass(frozen=True, slots=True)
class Call:
    """Source for the program's process: a statement, or an expression whose value comes back."""

    source: str
    check: Callable[[Any], bool] | None = None
    """The value is right; None for a statement."""
    test: str = ""
    """The test that it is of, e.g. ``tests[0]: f(2) == 4``; empty for a statement."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One run of the program as a script."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CodeTests:
    """A reference: calls, all made in one process, or exchanges, each in a process of its own."""

    calls: tuple[Call, ...] = ()
    exchanges: tuple[Exchange, ...] = ()


@lru_cache(maxsize=128)
def read_tests(gold: str) -> CodeTests:
    """A reference. Raises DataError with what is wrong with it, and with which of its tests."""
    _left.set(_MOST_IN_ALL)
    try:
        found = json.loads(gold)
    except (ValueError, RecursionError):
        raise DataError(FORM) from None
    if not isinstance(found, dict) or len({"tests", "io"} & found.keys()) != 1:
        raise DataError(FORM)
    tests = found.get("tests", found.get("io"))
    if not isinstance(tests, list) or not tests:
        raise DataError(FORM)
    if "tests" in found:
        return CodeTests(calls=tuple(_calls(tests, found.get("entry_point"))))
    return CodeTests(exchanges=tuple(_exchange(at, one) for at, one in enumerate(tests)))


def _exchange(at: int, one: object) -> Exchange:
    if not isinstance(one, dict) or not isinstance(one.get("stdout"), str) or not isinstance(one.get("stdin", ""), str):
        raise DataError(f'io[{at}] is not of the form {{"stdin": text, "stdout": text}}')
    return Exchange(one.get("stdin", ""), one["stdout"])


def same_output(printed: str, wanted: str) -> bool:
    """Equal line by line, without white space at the ends of lines and without empty lines at the end."""
    return _lines(printed) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _calls(tests: Sequence[object], entry_point: object) -> list[Call]:
    """The calls of all tests. One may define ``check(candidate)``, for a later one or ``entry_point`` to call."""
    calls: list[Call] = []
    checks: dict[str, ast.FunctionDef] = {}
    for at, test in enumerate(tests):
        try:
            body = ast.parse(test if isinstance(test, str) else "").body
            checks |= {node.name: node for node in body if isinstance(node, ast.FunctionDef) and _asserts(node)}
            rest = [node for node in body if node not in checks.values()]
            own = [call for node in rest for call in _of_statement(node, checks)]
            if len(rest) == len(body) and not any(call.check for call in own):
                raise _Unfit("there is no assert, or one inside of another statement")
            if at == len(tests) - 1 and not any(call.check for call in [*calls, *own]):
                own += _of_entry_point(entry_point, checks)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            raise DataError(f"tests[{at}] cannot be run: {error}") from None
        calls += [replace(call, test=f"tests[{at}]: {call.test}") if call.check else call for call in own]
    return calls


def _of_entry_point(entry_point: object, checks: Mapping[str, ast.FunctionDef]) -> list[Call]:
    """``check(entry_point)``, where the tests only define it."""
    if not isinstance(entry_point, str):
        raise _Unfit(f'nothing calls {" or ".join(checks)}: add "entry_point", the name of what is tested')
    return [call for node in ast.parse(f"check({entry_point})").body for call in _of_statement(node, checks)]


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


class _Unfit(ValueError):
    """A test that cannot be parted; says why."""


def _of_statement(node: ast.stmt, checks: Mapping[str, ast.FunctionDef]) -> list[Call]:
    """The calls of one statement; those of the body of ``check(candidate)`` where it is called."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) in checks:
        called = checks[_name(node.value.func)]
        names, values = [one.arg for one in called.args.args], node.value.args
        if len(names) != len(values) or any(isinstance(one, ast.Return) for one in called.body):
            raise _Unfit(
                f"`{ast.unparse(node)}` is no call of {called.name} with its arguments, or that one returns early"
            )
        bound = [Call(f"{name} = {ast.unparse(value)}") for name, value in zip(names, values, strict=True)]
        return [*bound, *(call for inner in called.body for call in _of_statement(inner, {}))]
    if not isinstance(node, ast.Assert):
        if _asserts(node):
            raise _Unfit("there is no assert, or one inside of another statement")
        return [Call(ast.unparse(node))]
    if isinstance(node.test, ast.Constant) and node.test.value is True:
        return []  # HumanEval has such
    return [replace(call, test=ast.unparse(node.test)) for call in _of_condition(node.test, positive=True)]


def _of_condition(node: ast.expr, *, positive: bool) -> list[Call]:
    """Condition that must hold, or with ``positive`` false must not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _of_condition(node.operand, positive=not positive)
    if isinstance(node, ast.BoolOp):
        if isinstance(node.op, ast.And) and positive:
            return [call for part in node.values for call in _of_condition(part, positive=True)]
        raise _Unfit(f"`{ast.unparse(node)}` is no conjunction")
    if isinstance(node, ast.Compare):
        if len(node.ops) != 1:
            raise _Unfit(f"`{ast.unparse(node)}` compares more than two values")
        return [_compared(node.left, node.ops[0], node.comparators[0], positive)]
    if (close := _isclose(node)) is not None:
        return [_checked(*close, positive)]
    return [_checked(f"bool({_shown(node)})", lambda value: value is True, positive)]


def _checked(source: str, check: Callable[[Any], bool], positive: bool) -> Call:
    return Call(source, check if positive else lambda value: not check(value))


def _compared(left: ast.expr, comparison: ast.cmpop, right: ast.expr, positive: bool) -> Call:
    kind = type(comparison)
    if not _is_value(right):
        if not _is_value(left) or kind not in _MIRRORED:
            raise _Unfit(f"`{ast.unparse(right)}` is no literal, so what is expected cannot be kept from the program")
        left, right, kind = right, left, _MIRRORED[kind]
    if (distance := _distance(left, kind, right)) is not None:
        return _checked(*distance, positive)
    if isinstance(right, ast.Call) and _name(right.func).rpartition(".")[2] == "approx":
        return _checked(_shown(left), _near(right, kind), positive == (kind is ast.Eq))
    if _is_value(left):
        raise _Unfit(f"`{ast.unparse(left)}` is a literal too: nothing of the program is tested")
    compare, wanted = _COMPARISONS[kind], _value(right)
    return _checked(_shown(left), lambda value: bool(compare(value, wanted)), positive)


def _shown(node: ast.expr) -> str:
    """Source for the program's process. A comparison in it would show what is expected, and let the program decide it."""
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Compare):
            raise _Unfit(f"`{ast.unparse(inner)}` is compared inside of what the program's process evaluates")
        waiting += [] if isinstance(inner, ast.Lambda) else ast.iter_child_nodes(inner)  # a lambda is an argument
    return ast.unparse(node)


def _distance(left: ast.expr, kind: type[ast.cmpop], right: ast.expr) -> tuple[str, Callable[[Any], bool]] | None:
    """``abs(f(x) - 1.5) < 1e-6``, either order; None for anything else."""
    if not isinstance(left, ast.Call) or _name(left.func) != "abs" or len(left.args) != 1:
        return None
    (inner,) = left.args
    if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
        return None
    one, other = (inner.left, inner.right) if _is_value(inner.right) else (inner.right, inner.left)
    if not _is_value(other):
        raise _Unfit(f"neither side of `{ast.unparse(inner)}` is a literal, so the program could read what is expected")
    compare, middle, bound = _COMPARISONS[kind], _value(other), _value(right)
    return _shown(one), lambda value: compare(abs(value - middle), bound)


def _near(node: ast.Call, kind: type[ast.cmpop]) -> Callable[[Any], bool]:
    """``approx(1.5)``, with pytest's tolerances."""
    wanted = _value(node.args[0])
    plain = len(node.args) == 1 and not node.keywords and isinstance(wanted, float | int)
    if kind not in (ast.Eq, ast.NotEq) or not plain:
        raise _Unfit(f"`{ast.unparse(node)}`: only == approx(number) is compared")
    bound = max(_APPROX_RELATIVE * abs(wanted), _APPROX_ABSOLUTE)
    return lambda value: value == wanted or abs(value - wanted) <= bound


def _isclose(node: ast.expr) -> tuple[str, Callable[[Any], bool]] | None:
    """``math.isclose(f(x), 1.5, rel_tol=…, abs_tol=…)``, either order; None for anything else."""
    if not isinstance(node, ast.Call) or _name(node.func) not in ("math.isclose", "isclose") or len(node.args) != 2:
        return None
    left, right = node.args
    if not _is_value(right):
        left, right = right, left
    options = {one.arg: _value(one.value) for one in node.keywords}
    if not _is_value(right) or not options.keys() <= {"rel_tol", "abs_tol"}:
        raise _Unfit(f"`{ast.unparse(node)}` is near no literal")
    relative, absolute = options.get("rel_tol", _DEFAULT_RELATIVE), options.get("abs_tol", 0.0)
    wanted = _value(right)
    return _shown(left), lambda value: math.isclose(value, wanted, rel_tol=relative, abs_tol=absolute)


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _is_value(node: ast.expr) -> bool:
    try:
        _value(node)
    except (_Unfit, ValueError, TypeError):
        return False
    return True


def _value(node: ast.expr) -> Any:
    """A literal, or one of a few builtins of literals; nothing else is evaluated in this process."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "approx" and node.args:
            return _value(node.args[0])
        if node.func.id in _BUILDERS:
            return _BUILDERS[node.func.id](*map(_value, node.args))
    if isinstance(node, ast.Call) and _name(node.func) == "pytest.approx" and node.args:
        return _value(node.args[0])
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)](map(_value, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _computed(node.op, _value(node.left), _value(node.right))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        raise _Unfit(f"`{ast.unparse(node)}` is no literal") from None


def _computed(operation: ast.operator, left: Any, right: Any) -> Any:
    """``10**9 + 7``, ``[0] * 3``, ``2 / 3``: of numbers, text and lists that stay small."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    most = 10**6 if isinstance(operation, ast.Pow) else 10**12 if numbers else 10**5
    largest = max((abs(one) for one in (left, right) if isinstance(one, int)), default=0)
    if isinstance(operation, ast.Mult | ast.Pow) and largest > most:
        raise _Unfit("a product or a power of its numbers is too large")
    if isinstance(operation, ast.Pow) and isinstance(right, int) and right > 1000:
        raise _Unfit("a power of its numbers is too large")
    items = sum(len(one) for one in (left, right) if isinstance(one, str | bytes | list | tuple))
    items *= largest if isinstance(operation, ast.Mult) else 1
    _left.set(_left.get() - items)
    if items > _MOST_ITEMS or _left.get() < 0:
        raise _Unfit(f"a value of more than {_MOST_ITEMS:,} items, or {_MOST_IN_ALL:,} in all tests")
    if isinstance(operation, ast.Mod) and isinstance(left, str | bytes):
        raise _Unfit("text is formatted by %")
    try:
        found = _ARITHMETIC[type(operation)](left, right)
    except ArithmeticError as error:
        raise _Unfit(str(error)) from None
    if _count_items(found, {}) > _MOST_ITEMS:
        raise _Unfit(f"a value of more than {_MOST_ITEMS:,} items")
    return found


def _count_items(value: Any, known: dict[int, int]) -> int:
    """Items of a value and of what is in it; a list that is in it several times counts as often, and is counted once."""
    if not isinstance(value, list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = max(1, sum(_count_items(one, known) for one in value))
    return known[id(value)]
