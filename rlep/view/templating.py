"""Pages from templates: everything is escaped, and text that others wrote has its control characters named."""

from __future__ import annotations

import base64
import hashlib
import math
from contextvars import ContextVar
from functools import cache, partial
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rlep.core.plural import sized
from rlep.core.printable import marked
from rlep.view import words
from rlep.view.mathematics import Room, typeset

MOST_TEXT = 65536
"""Characters of one text that a page shows."""
STATIC = ("view.css", "view.js")
_room: ContextVar[Room] = ContextVar("room")
"""Of the page that is rendered."""
SHADES = (0.01, 0.1, 0.7, 2.0, 4.0)
"""Negative log-probs in nats at which a token's shade changes."""


def rendered(name: str, **values: object) -> str:
    """Render a page. A lone surrogate, which JSON may hold and UTF-8 may not, becomes a question mark."""
    token = _room.set(Room())
    try:
        return _environment().get_template(name).render(**values).encode("utf-8", "replace").decode()
    finally:
        _room.reset(token)


def as_file(name: str, **values: object) -> str:
    """Render a page that is one file: style and script stand in it, and its policy allows these two alone."""
    digests = [base64.b64encode(hashlib.sha256(static(name).encode()).digest()).decode() for name in STATIC]
    policy = (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; form-action 'none'"
    )
    return rendered(name, policy=policy, **values)


def shown(value: object) -> str:
    """Any value as text that can be shown: bounded, control characters named."""
    text = "–" if value is None else str(value)
    more = f" … ({len(text)} characters in all)" if len(text) > MOST_TEXT else ""
    return marked(text[:MOST_TEXT]) + more


def exact(value: object) -> Markup:
    """The value of a field, which a form sends back as it is: characters that hide or turn others stand as references."""
    return Markup("").join(
        escape(mark) if mark.isprintable() else Markup("&#{};").format(ord(mark))
        for mark in ("" if value is None else str(value))
    )


def figure(value: object, unit: str = "") -> str:
    """A number as a person would write it; a dash where there is none."""
    if value is None:
        return "–"
    return words.number(float(value), unit) if isinstance(value, int | float) else shown(value)


def shade(logprob: float | None) -> str:
    """The class of a token: the less probable, the higher."""
    if logprob is None or math.isnan(logprob):
        return "s0"
    return f"s{sum(-logprob > bound for bound in SHADES)}"


def formulas(value: object) -> Markup | None:
    """A text with its formulas typeset; None where it has none."""
    return typeset(shown(value), _room.get())


@cache
def static(name: str) -> Markup:
    """A file of ``static/``, to stand in a page that is a file itself."""
    return Markup(resources.files("rlep.view").joinpath("static", name).read_text("utf-8"))  # noqa: S704 -- of the package


def _quoted(text: object, safe: str = "~") -> str:
    return quote(str(text), safe=safe, errors="replace")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rlep.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "exact": exact, "figure": figure, "shade": shade, "formulas": formulas}
    made.filters |= {
        "clock": words.clock,
        "ago": words.ago,
        "duration": words.duration,
        "short": words.short,
        "size": sized,
    }
    made.filters |= {"metric": words.label_of, "help": words.help_of, "unit": words.unit_of}
    made.filters |= {"part": _quoted, "link": partial(_quoted, safe="~/")}
    made.globals |= {"static": static}
    return made
