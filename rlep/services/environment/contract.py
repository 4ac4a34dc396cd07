"""The contract of an environment, that of TRL's ``environment_factory``: a class, and what of it is called.

reset(**row) → str | None      begins an episode; its text goes to the end of the question
public methods                 are tools: typed, with a docstring that describes each argument
get_reward() → float           is optional, of [0, 1] or ``score_range``: without it the ordinary verifier grades the last
turn
step(text) → str | None        in place of tools, for plain games: the answer to a turn, None ends the episode
close()                        is optional: called when the episode has ended
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlep.core.errors import ConfigError
from rlep.services.environment.arguments import Arguments

OWN = ("reset", "step", "get_reward", "close")
"""Public methods that are no tools."""


@dataclass(frozen=True)
class Contract:
    """A class, and what of it is called."""

    factory: Callable[[], Any]
    tools: Mapping[str, Arguments]
    """The arguments of each tool by its name, sorted; empty where it has ``step``."""
    schemas: tuple[Mapping[str, Any], ...]
    """JSON schema of each tool, as chat templates take it and TRL makes it."""
    columns: frozenset[str] | None
    """Names of the row that ``reset`` asks for; None: all, as it takes ``**row``."""
    needed: frozenset[str]
    """Those of them without a default."""
    has_reward: bool
    score_range: tuple[float, float]
    """Of ``get_reward``: the class's attribute of this name, [0, 1] without."""
    has_close: bool
    waits: bool
    """A method is ``async``."""


def load_contract(factory: str) -> Contract:
    """Import ``module:Class``. Raises ConfigError where it is no environment, and what the import raises."""
    module, _, name = factory.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise ConfigError(f"{name} is a {type(found).__name__}, not a class")
    methods = dict(inspect.getmembers(found, inspect.isfunction))
    if "reset" not in methods:
        raise ConfigError(f"{name} has no method reset, which begins an episode")
    tools = {tool: method for tool, method in methods.items() if not tool.startswith("_") and tool not in OWN}
    if "step" in methods and tools:
        raise ConfigError(
            f"{name} has step and the tools {', '.join(tools)}: a turn is a text for step, or calls of tools; put an "
            "underscore before the names of methods that are no tools, or take step away"
        )
    if "step" not in methods and not tools:
        raise ConfigError(f"{name} has neither step nor a public method that could be a tool")
    columns, needed = _columns(methods["reset"])
    return Contract(
        factory=found,
        tools={tool: _arguments(name, tool, method) for tool, method in tools.items()},
        schemas=tuple(_schema(name, tool, method) for tool, method in tools.items()),
        columns=columns,
        needed=needed,
        has_reward="get_reward" in methods,
        score_range=score_range(found),
        has_close="close" in methods,
        waits=any(map(inspect.iscoroutinefunction, methods.values())),
    )


def score_range(found: type) -> tuple[float, float]:
    """Least and highest reward of an environment's class. Raises ``ConfigError`` where they are no range."""
    low, high = map(float, getattr(found, "score_range", (0.0, 1.0)))
    if not -math.inf < low < high < math.inf:
        raise ConfigError(f"{found.__name__}.score_range = ({low:g}, {high:g}) is no range")
    return low, high


def _columns(reset: Callable[..., Any]) -> tuple[frozenset[str] | None, frozenset[str]]:
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = frozenset(name for name, parameter in named.items() if parameter.default is parameter.empty)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return None if takes_all else frozenset(named), needed


def _arguments(owner: str, tool: str, method: Callable[..., Any]) -> Arguments:
    try:
        return Arguments(tool, method)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{owner}.{tool} cannot be a tool: {error}") from None


def _schema(owner: str, tool: str, method: Callable[..., Any]) -> Mapping[str, Any]:
    from transformers.utils import get_json_schema

    try:
        schema: Mapping[str, Any] = get_json_schema(method)
    except Exception as error:  # noqa: BLE001 - it parses what the user wrote, and its errors have no base of their own
        raise ConfigError(
            f"{owner}.{tool} cannot be a tool: {error}; a tool needs a type for each argument, and a docstring with a line "
            "for each under Args:. If it is none, put an underscore before its name"
        ) from None
    return schema
