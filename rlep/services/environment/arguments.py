"""Arguments of a tool: those that a policy wrote, checked against those that the method takes."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

_MOST_FAULTS = 4
"""Faults of one call that are named."""


class BadCall(ValueError):
    """A call that the policy wrote wrongly; the message says to it what is wrong."""


class Arguments:
    """Parameters of a tool, by name."""

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        """``method``: of a class, with ``self``. Raises TypeError or NameError where no call in JSON can serve it."""
        static = "self" not in inspect.signature(method).parameters
        parameters = list(inspect.signature(method).parameters.values())[0 if static else 1 :]
        types = typing.get_type_hints(method)
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{parameter} has no name of its own in a call")
            if parameter.name not in types:
                raise TypeError(f"its argument {parameter.name} has no type")
        fields: dict[str, Any] = {
            f"field_{number}": (types[parameter.name], Field(self._default(parameter), alias=parameter.name))
            for number, parameter in enumerate(parameters)
        }
        try:
            self._model = create_model(name, __config__=ConfigDict(strict=True, extra="forbid"), **fields)
        except PydanticSchemaGenerationError as error:
            raise TypeError(f"an argument has a type that no value in JSON has: {error.message}") from None
        shown = ", ".join(f"{p.name}: {_type_name(types[p.name])}{_default_shown(p)}" for p in parameters)
        self._signature = f"{name}({shown})"

    def read(self, text: str) -> Mapping[str, Any]:
        """Return the arguments in a JSON object, as JSON has them. Raises BadCall."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadCall(f"the arguments of {self._signature} are no JSON object: {error}") from None
        if not isinstance(values, dict):
            raise BadCall(f"the arguments of {self._signature} are no JSON object")
        try:
            self._model.model_validate_json(text)
        except ValidationError as error:
            faults = [_fault(one["type"], one["loc"], one["msg"]) for one in error.errors(include_url=False)]
            raise BadCall(f"{'; '.join(faults[:_MOST_FAULTS])}. It is {self._signature}") from None
        return values

    @staticmethod
    def _default(parameter: inspect.Parameter) -> Any:
        return ... if parameter.default is parameter.empty else parameter.default


def _fault(kind: str, place: tuple[int | str, ...], said: str) -> str:
    name = ".".join(map(str, place))
    if kind == "missing":
        return f"the argument {name:.80} is missing"
    if kind == "extra_forbidden":
        return f"there is no argument {name:.80}"
    said = f"{said[:1].lower()}{said[1:]}"
    return f"{name:.80}: {said}" if name else said


def _type_name(found: Any) -> str:
    return (
        found.__name__ if isinstance(found, type) and not typing.get_args(found) else str(found).replace("typing.", "")
    )


def _default_shown(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
