"""From TOML files and ``--set`` to one ``Config``: layered left to right, every mistake named with its fix."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeIs

from rlep.config.refusals import reason
from rlep.config.schema import Config
from rlep.config.shipped import hint
from rlep.config.suggest import suggestions
from rlep.core.errors import ConfigError
from rlep.methods.replay_method import settings_of

Tree = dict[str, Any]

RENAMED = {
    "generator.silence_s": "generator.heartbeat_timeout_s",
    "verifier.silence_s": "verifier.heartbeat_timeout_s",
    "learner.silence_s": "learner.heartbeat_timeout_s",
}
"""Old key → its new name. It is refused in files and ``--set``, and taken over from a stored config."""

DELETED = {
    **dict.fromkeys(
        ("generator.minimum", "generator.maximum", "generator.idle_s"),
        "rlep no longer scales by itself; set generator.count, or use `rlep scale` while the run is on",
    ),
    "generator.hedge": "requests are no longer sent twice by response time; generator.lease_s re-dispatches late ones",
}
"""Old key → why it went and what to use instead. It never changed a step's result, so a stored config just loses it."""

RENAMED_VALUES = {("generator.transfer", "segment"): "shared_memory", ("update.stream", "fixed"): "true"}
"""(key, old value) → the value's new name, treated like ``RENAMED``."""

DELETED_VALUES = {
    ("update.stream", "completion"): "its order of updates was not reproducible; true updates in a fixed order"
}
"""(key, old value) → why it went and what to use instead. It changed results: a stored config that has it is refused."""


def load_config(files: Sequence[Path] = (), overrides: Iterable[str] = ()) -> Config:
    """The config that ``files`` (later ones win) and ``key=value`` overrides describe.

    Raises ``ConfigError`` for a missing or malformed file, an unknown key (with the nearest known one), a value of
    the wrong kind or range, and settings that contradict each other; it names the file that holds key or value.
    """
    return _layered([(file, _read(file)) for file in files], overrides, methods=True)


def _layered(layers: Iterable[tuple[Path, Tree]], overrides: Iterable[str], *, methods: bool = False) -> Config:
    """The config of files' trees and, on top of them, overrides; an error names the file that holds key or value.

    ``methods``: a layer that sets ``replay.method`` stands on the method's own values. A stored config has them already, and
    reading it runs nobody's code.
    """
    tree: Tree = {}
    sources: dict[str, str] = {}
    for file, layer in layers:
        try:
            _refuse_unknown(layer, Config, "")
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        if methods:
            _merge(tree, _of_method(layer))
        _merge(tree, layer)
        sources |= dict.fromkeys(_flat(layer), f"{file}: ")
    for text in overrides:
        layer = _override(text)
        if methods:
            _merge(tree, _of_method(layer))
        _merge(tree, layer)
        sources |= dict.fromkeys(_flat(layer), "")
    return parse_config(tree, sources)


def _of_method(layer: Tree) -> Tree:
    """The values that the replay method of a layer brings; none where the layer names no method."""
    section = layer.get("replay")
    name = section.get("method") if isinstance(section, Mapping) else None
    return {"replay": settings_of(name)} if isinstance(name, str) else {}


def parse_config(tree: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Config:
    """The config of a plain tree, e.g. a run directory's ``config.json``; ``sources`` say where a dotted key is from."""
    _refuse_unknown(tree, Config, "")
    try:
        return Config.model_validate(tree)
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(issue, sources or {}) for issue in error.errors())) from None


def parse_stored_config(tree: Mapping[str, Any], file: Path, overrides: Iterable[str] = ()) -> Config:
    """The config that an earlier run left in ``file``: renamed keys and values are taken over, deleted keys are dropped.

    ``key=value`` overrides win over it.

    Raises ``ConfigError``, naming the file, for a value that was deleted because it changed results, and as ``parse_config``.
    """
    upgraded: Tree = {}
    for section, keys in tree.items():
        if not isinstance(keys, Mapping):
            upgraded[section] = keys
            continue
        for key, value in keys.items():
            if (name := f"{section}.{key}") in DELETED:
                continue
            name = RENAMED.get(name, name)
            _merge(upgraded, _nested(name.split(".", 1), RENAMED_VALUES.get((name, str(value)), value)))
    return _layered([(file, upgraded)], overrides)


def dump_config(config: Config) -> str:
    """The resolved config as JSON: what ``config.json`` holds and ``parse_config`` reads back."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"


def differences(left: Config, right: Config) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with both values as JSON has them; in order of the keys."""
    a, b = _flat(left.model_dump(mode="json")), _flat(right.model_dump(mode="json"))
    return {key: (a.get(key), b.get(key)) for key in sorted(a | b) if a.get(key) != b.get(key)}


def as_override(key: str, value: Any) -> str:
    """A ``--set`` option for a shell that gives ``key`` this JSON value. None, which TOML does not have, is not allowed."""
    return f"--set {shlex.quote(f'{key}={json.dumps(value, ensure_ascii=False)}')}"


def _read(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        way = f"; an override is given by --set {file}" if "=" in str(file) else hint(file)
        raise ConfigError(f"config file {file} does not exist{way}") from None
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
    return _nested(names, parsed)


def _nested(names: Sequence[str], value: Any) -> Tree:
    """The tree with this one value."""
    for name in reversed(names):
        value = {name: value}
    tree: Tree = value
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
            unknown = prefix + next(iter(_flat({key: value})))
            _refuse_former(unknown)
            hints = suggestions(unknown, _keys())
            hint = f"; did you mean {' or '.join(hints)}?" if hints else f"; known: {', '.join(model.model_fields)}"
            raise ConfigError(f"unknown key {unknown}{hint}")
        if _is_section(field.annotation):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{key} is a section with keys, not one value")
            _refuse_unknown(value, field.annotation, f"{prefix}{key}.")


def _refuse_former(key: str) -> None:
    """Raise ``ConfigError`` for a key that rlep once had."""
    if key in RENAMED:
        raise ConfigError(f"{key} is now called {RENAMED[key]}")
    if key in DELETED:
        raise ConfigError(f"{key} no longer exists: {DELETED[key]}")


def _keys() -> list[str]:
    """Every section, and every key in it."""
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    keys = [f"{n}.{key}" for n, kind in sections.items() if _is_section(kind) for key in kind.model_fields]
    return [*keys, *sections]


def _is_section(annotation: object) -> TypeIs[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _sentence(issue: Any, sources: Mapping[str, str]) -> str:
    parts = [str(part) for part in issue["loc"]]
    key = ".".join(parts)
    former = (key, str(issue["input"]))
    text = reason(issue)
    if former in RENAMED_VALUES:
        text = f"this value is now called {RENAMED_VALUES[former]}"
    elif former in DELETED_VALUES:
        text = f"this value no longer exists: {DELETED_VALUES[former]}"
    shown = "" if key == "pool.url" else f" = {issue['input']!r}"  # a URL may hold a password
    named = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # an item of a list: where the list is from
    source = next((sources[name] for name in named if name in sources), "")
    of_several = isinstance(issue["input"], Mapping)  # a section's own check names its keys
    return f"{source}{key}{shown}: {text}" if key and not of_several else text


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
