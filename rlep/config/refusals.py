"""Why a value is refused, in rlep's words: pydantic's errors as sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlep.core.plural import counted

Context = Mapping[str, Any]

SENTENCES: dict[str, Callable[[Context], str]] = {
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']:g}",
    "greater_than": lambda ctx: f"must be more than {ctx['gt']:g}",
    "less_than_equal": lambda ctx: f"must be at most {ctx['le']:g}",
    "less_than": lambda ctx: f"must be less than {ctx['lt']:g}",
    "finite_number": lambda ctx: "must be a finite number",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "string_pattern_mismatch": lambda ctx: f"must match the pattern {ctx['pattern']}",
    "string_type": lambda ctx: "must be text",
    "string_unicode": lambda ctx: "must be text in UTF-8",
    "path_type": lambda ctx: "must be a path, as text",
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


def reason(issue: Mapping[str, Any]) -> str:
    """Why pydantic's ``issue`` refuses its value."""
    kind = str(issue["type"])
    if kind in SENTENCES:
        return SENTENCES[kind](issue.get("ctx", {}))
    expected = KINDS.get(kind.partition("_")[0])
    return "cannot be used here" if expected is None else f"must be {expected}"
