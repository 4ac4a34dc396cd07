"""From TOML files and ``--set`` to one ``Config``: layered left to right, every mistake named with its fix."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlep.config.schema import Config
from rlep.core.errors import ConfigError

Tree = dict[str, Any]


def load_config(files: Sequence[Path] = (), overrides: Iterable[str] = ()) -> Config:
    """The config that ``files`` (later ones win) and ``key=value`` overrides describe.

    Raises ``ConfigError`` for a missing or malformed file, an unknown key (with the nearest known one), a value of
    the wrong kind or range, and settings that contradict each other; it names the file that holds key or value.
    """
    tree: Tree = {}
    sources: dict[str, str] = {}
    for file in files:
        layer = _read(file)
        try:
            _refuse_unknown(layer, Config, "")
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        _merge(tree, layer)
        sources |= dict.fromkeys(_flat(layer), f"{file}: ")
    for text in overrides:
        layer = _override(text)
        _merge(tree, layer)
        sources |= dict.fromkeys(_flat(layer), "")
    return parse_config(tree, sources)


def parse_config(tree: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Config:
    """The config of a plain tree, e.g. a run directory's ``config.json``; ``sources`` say where a dotted key is from."""
    _refuse_unknown(tree, Config, "")
    try:
        return Config.model_validate(tree)
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(issue, sources or {}) for issue in error.errors())) from None


def dump_config(config: Config) -> str:
    """The resolved config as JSON: what ``config.json`` holds and ``parse_config`` reads back."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"


def differences(left: Config, right: Config) -> list[str]:
    """The dotted keys whose values differ, each with both values."""
    a, b = _flat(left.model_dump(mode="json")), _flat(right.model_dump(mode="json"))
    return [f"{key}: {a.get(key)!r} → {b.get(key)!r}" for key in sorted(a | b) if a.get(key) != b.get(key)]


def _read(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {file} does not exist") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {file} cannot be read: {error}") from None


def _override(text: str) -> Tree:
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {text!r} is not of the form section.key=value")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for name in reversed(names):
        parsed = {name: parsed}
    tree: Tree = parsed
    return tree


def _merge(into: Tree, layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _refuse_unknown(tree: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            near = difflib.get_close_matches(key, model.model_fields, n=1)
            elsewhere = [f"{name}.{key}" for name, f in Config.model_fields.items() if key in _fields(f.annotation)]
            hints = [prefix + name for name in near] or elsewhere
            hint = f"; did you mean {' or '.join(hints)}?" if hints else f"; known: {', '.join(model.model_fields)}"
            raise ConfigError(f"unknown key {prefix}{key}{hint}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{key} is a section with keys, not one value")
            _refuse_unknown(value, field.annotation, f"{prefix}{key}.")


def _fields(annotation: object) -> Iterable[str]:
    return annotation.model_fields if isinstance(annotation, type) and issubclass(annotation, BaseModel) else ()


def _sentence(issue: Any, sources: Mapping[str, str]) -> str:
    parts = [str(part) for part in issue["loc"]]
    key = ".".join(parts)
    text = str(issue["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    shown = "" if key == "pool.url" else f" = {issue['input']!r}"  # a URL may hold a password
    named = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # an item of a list: where the list is from
    source = next((sources[name] for name in named if name in sources), "")
    return f"{source}{key}{shown}: {text}" if key else text


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
