"""The table of all keys, from the config tree: the site shows it on the page *Configuration*."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from rlep.config.schema import Config
from rlep.config.section import Rule

KINDS = {bool: "true, false", int: "integer", float: "number", str: "text", Path: "path", JsonValue: "value"}
SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def table() -> str:
    """One table per section, in the order of the tree."""
    defaults = Config()
    parts = []
    for name in Config.model_fields:
        section: BaseModel = getattr(defaults, name)
        rows = list(_rows(name, type(section), section.model_dump(mode="json")))
        head = f"### `[{name}]`\n\n{type(section).__doc__}\n\n| Key | Values | Default | Meaning |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(rows))
    return "\n\n".join(parts)


def _rows(name: str, kind: type[BaseModel], values: Mapping[str, Any] | None = None) -> Iterator[str]:
    """One row per key, and under a key that holds a table one for each of its keys."""
    for key, field in kind.model_fields.items():
        yield _row(
            name, key, field, (None if field.is_required() else field.default) if values is None else values[key]
        )
        for part in get_args(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _rows(f"{name}.{key}", part)


def _row(section: str, key: str, field: FieldInfo, default: object) -> str:
    meaning = " ".join((field.description or "").replace("``", "`").replace("|", "\\|").split())
    rules = "; ".join(dict.fromkeys(str(part) for part in field.metadata if isinstance(part, Rule)))
    meaning += f" {rules[0].upper()}{rules[1:]}." if rules else ""
    return f"| `{section}.{key}` | {_values(field)} | {_default(default)} | {meaning} |"


def _values(field: FieldInfo) -> str:
    return " ".join(part for part in (_kind(field.annotation), _bounds(field.metadata)) if part)


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " ".join(_kind(part) for part in arguments if part is not types.NoneType)
    if origin is tuple:
        inner = _kind(arguments[0])
        return f"list of {inner}" if arguments[1:] == (...,) else f"{len(arguments)} of {inner}"
    if origin is dict:
        return f"table of {_kind(arguments[1])}s"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return " ".join(part for part in (_kind(arguments[0]), _bounds(_constraints(annotation.__metadata__))) if part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"`{{ {', '.join(annotation.model_fields)} }}`"
    return KINDS[annotation]


def _constraints(metadata: Iterable[Any]) -> list[Any]:
    return [inner for part in metadata for inner in (part.metadata if isinstance(part, FieldInfo) else [part])]


def _bounds(metadata: Iterable[Any]) -> str:
    found = [(SIGNS[type(part)], part) for part in metadata if type(part) in SIGNS]
    return ", ".join(f"{sign} {getattr(part, name)}" for (sign, name), part in found)


def _default(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"
