"""Tables of the documentation that the code holds. The site shows them where a page says ``<!-- generated: NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlep.driver.run_directory import CHANGEABLE
from rlep.engines.families import FAMILIES
from rlep.metrics.catalogue import EVENTS, METRICS
from scripts.config_table import table as keys

MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.M)


def names() -> str:
    """Return one table of metrics and one of events, in the order of the catalogue."""
    metrics = [f"| `{m.name}` | {m.unit} | {m.help}{' (a list)' if m.kind == 'list' else ''} |" for m in METRICS]
    events = [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return "\n".join(
        [
            *("### All metrics", "", "| Name | Unit | Meaning |", "|---|---|---|", *metrics, ""),
            *("### All events", "", "| Name | Meaning |", "|---|---|---|", *events),
        ]
    )


def changeable() -> str:
    """Return the keys that may differ when a run is continued, in one line."""
    return ", ".join(f"`{key}*`" if key.endswith(".") else f"`{key}`" for key in CHANGEABLE)


def families() -> str:
    """Return the table of model families."""
    rows = [f"| `{kind}` | {models} |" for kind, models in FAMILIES.items()]
    return "\n".join(["| `model_type` in `config.json` | Models |", "|---|---|", *rows])


GENERATED: dict[str, Callable[[], str]] = {
    "keys": keys,
    "names": names,
    "changeable": changeable,
    "families": families,
}


def with_tables(text: str) -> str:
    """Replace each marker of a page by its table. Raises ``KeyError`` for a name that no table has."""
    return MARKER.sub(lambda marker: GENERATED[marker.group(1)](), text)
