"""docs/reference/waits.md: every setting that is a deadline with its default, and every wait without a clock of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rlep.config.schema import Config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/waits.md").read_text()
BEFORE_A_RUN = {"cli", "console", "quickstart", "report", "selftest", "study"}
"""Folders that no run of a cluster depends on."""
NOT_WAITS = {"verifier.cpu_seconds", "verifier.wall_seconds"}


def unbounded(source: str) -> Iterator[tuple[str, str]]:
    """(qualified name, call) of every wait in ``source`` that has neither a timeout nor a block with one around it."""

    def of(node: ast.AST, names: tuple[str, ...], within: bool) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names, within = (*names, node.name), False
        elif isinstance(node, ast.AsyncWith):
            within = within or any("timeout(" in ast.unparse(item.context_expr) for item in node.items)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait_for":
            within = True
        elif isinstance(node, ast.Call) and _waits(node, futures="concurrent.futures" in source) and not within:
            yield ".".join(names), ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from of(child, names, within)

    return of(ast.parse(source), (), False)


def _waits(call: ast.Call, *, futures: bool) -> bool:
    if not isinstance(call.func, ast.Attribute) or any(word.arg == "timeout" for word in call.keywords):
        return False
    on, arguments = ast.unparse(call.func.value), bool(call.args)
    if call.func.attr == "wait":
        return not arguments or on in {"asyncio", "ray"}
    if call.func.attr == "get":
        return on == "ray" or not (arguments or call.keywords)
    return (call.func.attr == "join" or (futures and call.func.attr == "result")) and not arguments


def sources() -> Iterator[Path]:
    """The modules that runs are made of."""
    for path in sorted((ROOT / "rlep").rglob("*.py")):
        if path.relative_to(ROOT / "rlep").parts[0] not in BEFORE_A_RUN:
            yield path


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default) of every number of seconds."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings(field.annotation, f"{prefix}{name}.")
        elif name.endswith("_s"):
            yield prefix + name, field.get_default(call_default_factory=True)


def test_every_wait_without_a_clock_is_listed_with_what_ends_it() -> None:
    table = PAGE.split("<!-- waits -->")[1].split("<!-- end of waits -->")[0]
    listed = re.findall(r"^\| `([^`]+)` `([^`]+)` \| \S.* \| \S.* \|$", table, re.M)
    found = {
        (str(path.relative_to(ROOT / "rlep")), name) for path in sources() for name, _ in unbounded(path.read_text())
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f():\n    await event.wait()", ["event.wait()"]),
        ("async def f():\n    async with asyncio.timeout(3):\n        await event.wait()", []),
        ("async def f():\n    await asyncio.wait_for(event.wait(), 3)", []),
        ("def f():\n    process.wait(3)", []),
        ("def f(task):\n    return task.result()", []),
        ("from concurrent.futures import Future\ndef f(done):\n    return done.result()", ["done.result()"]),
        ("async def f():\n    await asyncio.wait(tasks)", ["asyncio.wait(tasks)"]),
        ("async def f():\n    await asyncio.wait(tasks, timeout=3)", []),
        ("def f():\n    ray.get(reference)\n    values.get('key')\n    ', '.join(names)", ["ray.get(reference)"]),
        ("def f():\n    thread.join()\n    queue.get()", ["thread.join()", "queue.get()"]),
    ],
)
def test_a_wait_is_recognised(source: str, found: list[str]) -> None:
    assert [call for _, call in unbounded(source)] == found


def test_every_deadline_that_can_be_set_is_listed_with_its_default() -> None:
    rows = dict(re.findall(r"^\| [^|]+ \| `([a-z_.]+)` \| ([^|]+) \| [^|]+ \|$", PAGE, re.M))
    assert rows.keys() == dict(settings(Config)).keys()
    for key, default in settings(Config):
        assert rows[key] == f"{default:.0f} s" if default is not None else rows[key].startswith("from "), key
