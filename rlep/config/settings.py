"""From TOML files and ``--set`` to one ``Config``: layered left to right, every mistake named with its fix."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeIs

from rlep.config.schema import Config
from rlep.config.section import Section
from rlep.config.shipped import hint
from rlep.config.suggest import suggestions
from rlep.core.errors import ConfigError
from rlep.core.plural import counted
from rlep.methods.replay_method import settings_of

Tree = dict[str, Any]
SomeSection = TypeVar("SomeSection", bound=Section)

SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']:g}",
    "greater_than": lambda ctx: f"must be more than {ctx['gt']:g}",
    "less_than_equal": lambda ctx: f"must be at most {ctx['le']:g}",
    "less_than": lambda ctx: f"must be less than {ctx['lt']:g}",
    "finite_number": lambda ctx: "must be a finite number",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "string_pattern_mismatch": lambda ctx: f"must match the pattern {ctx['pattern']}",
    "string_too_short": lambda ctx: f"must have at least {counted(ctx['min_length'], 'character')}",
    "string_type": lambda ctx: "must be text",
    "string_unicode": lambda ctx: "must be text in UTF-8",
    "path_type": lambda ctx: "must be a path, as text",
    "model_type": lambda ctx: "must be a table of names and values",
    "dict_type": lambda ctx: "must be a table of names and values",
    "tuple_type": lambda ctx: "must be a list",
    "too_long": lambda ctx: f"must have at most {counted(ctx['max_length'], 'value')}",
    "too_short": lambda ctx: f"must have at least {counted(ctx['min_length'], 'value')}",
    "extra_forbidden": lambda ctx: "is not a known key",
    "missing": lambda ctx: "is missing",
    "value_error": lambda ctx: str(ctx["error"]),
}
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""First word of a pydantic error type → what was expected."""


def load_config(files: Sequence[Path] = (), overrides: Iterable[str] = ()) -> Config:
    """The config that ``files`` (later ones win) and ``key=value`` overrides describe.

    Raises ``ConfigError`` for a missing or malformed file, an unknown key (with the nearest known one), a value of
    the wrong kind or range, and settings that contradict each other; it names the file that holds key or value.
    """
    return _layered([(file, _read(file)) for file in files], overrides, methods=True)


def _layered(layers: Iterable[tuple[Path, Tree]], overrides: Iterable[str], *, methods: bool = False) -> Config:
    """The config of files' trees and, on top of them, overrides; an error names the file that holds key or value.

    ``methods``: the last layer that sets ``replay.method`` stands on the method's own values. A stored config has them already,
    and reading it runs nobody's code.
    """
    trees: list[tuple[str, Tree]] = []
    for file, layer in layers:
        try:
            _refuse_unknown(layer, Config, "")
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        trees.append((f"{file}: ", layer))
    given: Tree = {}
    for text in overrides:
        _merge(given, _override(text))
    trees.append(("", given))
    naming = [place for place, (_, layer) in enumerate(trees) if _method_of(layer) is not None]
    tree: Tree = {}
    sources: dict[str, str] = {}
    for place, (source, layer) in enumerate(trees):
        if methods and naming[-1:] == [place]:
            _merge(tree, {"replay": settings_of(str(_method_of(layer)))})
        _merge(tree, layer)
        sources |= dict.fromkeys(_flat(layer), source)
    return parse_config(tree, sources)


def _method_of(layer: Tree) -> str | None:
    section = layer.get("replay")
    name = section.get("method") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else None


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
    """The config that an earlier run left in ``file``, with ``key=value`` overrides; raises as ``load_config``."""
    try:
        return _layered([(file, dict(tree))], overrides)
    except ConfigError as error:
        if not str(error).startswith(f"{file}:"):
            raise
        raise ConfigError(
            f"{error}\n(if another version of rlep wrote it: choose another run.directory, or name checkpoints/step-N/model)"
        ) from None


def section_of(kind: type[SomeSection], name: str, values: Mapping[str, Any]) -> SomeSection:
    """One section of these values. Raises ``ConfigError`` as ``load_config`` does of ``[name]``."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        issues = [dict(issue) | {"loc": (name, *issue["loc"])} for issue in error.errors()]
        raise ConfigError("\n".join(_sentence(issue, {}) for issue in issues)) from None


def dump_config(config: Config) -> str:
    """The resolved config as JSON: what ``config.json`` holds and ``parse_config`` reads back."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"


def differences(left: Config, right: Config) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with both values as JSON has them; in order of the keys."""
    a, b = _flat(left.model_dump(mode="json")), _flat(right.model_dump(mode="json"))
    return {key: (a.get(key), b.get(key)) for key in sorted(a | b) if a.get(key) != b.get(key)}


def as_override(key: str, value: Any) -> str:
    """A ``--set`` option for a shell that gives ``key`` this JSON value. None, which TOML does not have, is not allowed."""
    text = toml_text("none" if value == {} else value)
    return f"--set {shlex.quote(f'{key}={text}')}"


def toml_text(value: Any) -> str:
    """A JSON value as TOML has it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


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
    except tomllib.TOMLDecodeError as error:
        if value.lstrip()[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"--set {text!r} is not TOML: {error}") from None
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
            hints = suggestions(unknown, _keys())
            hint = f"; did you mean {' or '.join(hints)}?" if hints else f"; known: {', '.join(model.model_fields)}"
            raise ConfigError(f"unknown key {unknown}{hint}")
        if _is_section(field.annotation):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{key} is a section with keys, not one value")
            _refuse_unknown(value, field.annotation, f"{prefix}{key}.")


def _keys() -> list[str]:
    """Every section, and every key in it."""
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    keys = [f"{n}.{key}" for n, kind in sections.items() if _is_section(kind) for key in kind.model_fields]
    return [*keys, *sections]


def _is_section(annotation: object) -> TypeIs[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def reason(issue: Mapping[str, Any]) -> str:
    """Why pydantic's ``issue`` refuses its value."""
    kind = str(issue["type"])
    if kind in SENTENCES:
        return SENTENCES[kind](issue.get("ctx", {}))
    expected = KINDS.get(kind.partition("_")[0])
    return "cannot be used here" if expected is None else f"must be {expected}"


def _sentence(issue: Any, sources: Mapping[str, str]) -> str:
    parts = [str(part) for part in issue["loc"]]
    key = ".".join(parts)
    text = reason(issue)
    shown = "" if key == "pool.url" else f" = {issue['input']!r}"  # a URL may hold a password
    named = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # an item of a list: where the list is from
    source = next((sources[name] for name in named if name in sources), "")
    if issue["type"] == "missing":
        return f"{source}{key} {text}"
    # A section's own check names its keys.
    of_several = isinstance(issue["input"], Mapping) and (len(parts) < 2 or text.startswith(f"{key}."))
    return f"{source}{key}{shown}: {text}" if key and not of_several else text


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
