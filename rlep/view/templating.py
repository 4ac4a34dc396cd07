"""Pages from templates: everything is escaped, and text that others wrote has its control characters named."""

from __future__ import annotations

import math
import time
from functools import cache
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlep.core.printable import marked

MOST_TEXT = 65536
"""Characters of one text that a page shows."""
SHADES = (0.01, 0.1, 0.7, 2.0, 4.0)
"""Negative log-probs in nats at which a token's shade changes."""


def rendered(name: str, **values: object) -> str:
    """A page."""
    return _environment().get_template(name).render(**values)


def shown(value: object) -> str:
    """Any value as text that can be shown: bounded, control characters named."""
    text = "–" if value is None else str(value)
    more = f" … ({len(text)} characters in all)" if len(text) > MOST_TEXT else ""
    return marked(text[:MOST_TEXT]) + more


def figure(value: object, digits: int = 4) -> str:
    """A number with so many significant digits, a whole one with all; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return shown(value)


def clock(seconds: float) -> str:
    """Seconds since the epoch as local date and time; a dash for 0."""
    if not seconds:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(seconds, 0.0), 2**33)))


def shade(logprob: float | None) -> str:
    """The class of a token: the less probable, the higher."""
    if logprob is None or math.isnan(logprob):
        return "s0"
    return f"s{sum(-logprob > bound for bound in SHADES)}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rlep.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "figure": figure, "shade": shade, "clock": clock}
    made.filters |= {"part": lambda text: quote(str(text), safe="~"), "link": lambda text: quote(str(text), safe="~/")}
    return made
