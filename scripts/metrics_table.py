"""Generates the tables of metrics and events in docs/reference/metrics.md from the catalogue.

``python scripts/metrics_table.py`` writes them; a contract test compares.
"""

from __future__ import annotations

from pathlib import Path

from rlep.metrics.catalogue import EVENTS, METRICS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md"
BEGIN = "<!-- names: written by scripts/metrics_table.py -->"
END = "<!-- end of names -->"


def tables() -> str:
    """One table of metrics and one of events, in the order of the catalogue."""
    metrics = [f"| `{m.name}` | {m.unit} | {m.help}{' (a list)' if m.kind == 'list' else ''} |" for m in METRICS]
    events = [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return "\n".join(
        [
            *("### All metrics", "", "| Name | Unit | Meaning |", "|---|---|---|", *metrics, ""),
            *("### All events", "", "| Name | Meaning |", "|---|---|", *events),
        ]
    )


def document(text: str) -> str:
    """The page with its tables replaced by the current ones."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
