"""Tables of the documentation that the code holds: ``python -m scripts.tables`` writes them into the pages.

They stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``; a contract test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from rlep.cli import app
from rlep.config.shipped import HOME, PLACE, shipped, title_of
from rlep.driver.run_directory import CHANGEABLE
from rlep.engines.families import FAMILIES
from rlep.metrics.catalogue import EVENTS, METRICS
from scripts.config_table import table as keys
from scripts.model_table import table as models
from scripts.monitoring import alert_table as alerts

PAGES = Path(__file__).parents[1] / "docs"
PLACE_OF_TABLE = re.compile(r"^(<!-- generated: (\w+) -->\n).*?^<!-- end -->$", re.M | re.S)


def names() -> str:
    """Return one table of metrics and one of events, in the order of the catalogue."""
    metrics = [f"| `{m.name}` | {m.unit} | {m.help}{' (a list)' if m.kind == 'list' else ''} |" for m in METRICS]
    events = [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return "\n".join(
        [
            *("### All metrics", "", "| Name | Unit | Meaning |", "|---|---|---|", *metrics, ""),
            *("### All events", "", "| Name | Meaning |", "|---|---|", *events),
        ]
    )


def changeable() -> str:
    """Return the keys that may differ when a run is continued, in one line."""
    return ", ".join(f"`{key}*`" if key.endswith(".") else f"`{key}`" for key in CHANGEABLE)


def families() -> str:
    """Return the table of model families."""
    rows = [f"| `{kind}` | {models} |" for kind, models in FAMILIES.items()]
    return "\n".join(
        [
            "| `model_type` in `config.json` | Models |",
            "|---|---|",
            *rows,
        ]
    )


def presets() -> str:
    """Return the table of the recipes and configurations that rlep ships."""
    rows = [f"| `{PLACE / file.relative_to(HOME)}` | {title_of(file)} |" for file in shipped().values()]
    return "\n".join(["| File | What it is |", "|---|---|", *rows])


def commands() -> str:
    """Return the table of all commands, with the first sentence of their help texts."""
    rows = [f"| `{name}` | {text} |" for name, text in _commands("rlep", get_command(app))]
    return "\n".join(["| Command | What it does |", "|---|---|", *rows])


def _commands(name: str, command: Any) -> Iterator[tuple[str, str]]:
    for word, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(f"{name} {word}", inner)
        else:
            arguments = [argument.metavar for argument in inner.params if argument.param_type_name == "argument"]
            called = " ".join([name, word, *filter(None, arguments)])
            help_text = inner.help.partition("\n\n")[0].replace("\n", " ")
            yield called.replace("|", "\\|"), help_text.replace("|", "\\|")


GENERATED: dict[str, Callable[[], str]] = {
    "keys": keys,
    "names": names,
    "changeable": changeable,
    "families": families,
    "models": models,
    "presets": presets,
    "commands": commands,
    "alerts": alerts,
}


def with_tables(text: str) -> str:
    """Write each table of a page anew. Raises ``KeyError`` for a name that no table has."""
    return PLACE_OF_TABLE.sub(lambda place: f"{place[1]}\n{GENERATED[place[2]]().strip()}\n\n<!-- end -->", text)


if __name__ == "__main__":
    for page in PAGES.rglob("*.md"):
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
