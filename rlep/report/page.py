"""The HTML page: no scripts, nothing from outside, every text from a run escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import fmean

from rlep.core.plural import counted
from rlep.view.last_steps import last_breakdown
from rlep.view.record import PHASES, RunRecord
from rlep.view.summary import Summary, percent

EXTRAS = ("evaluate", "checkpoint")
"""What happens between steps; ``time/<name>`` each."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn panel for both backgrounds, as SVG."""

    title: str
    caption: str
    light: bytes
    dark: bytes


def page(records: Sequence[RunRecord], found: Summary, charts: Sequence[Chart]) -> str:
    """The whole page."""
    title = " · ".join(run.label for run in found.runs) or "rlep"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(found.headline())}</p>',
        status(records),
        "<h2>Summary</h2>",
        table(found.rows(), mark="role"),
        f'<p class="note">Accuracy on {escape(found.data_source or "held-out questions")}, in per cent of samples. '
        "Mean over steps is the area under the curve divided by its length.</p>",
        '<div class="charts">' + "".join(map(figure, charts)) + "</div>",
        "<h2>Evaluations</h2>",
        evaluations(records),
        "<h2>Seconds</h2>",
        table(seconds(records)),
        "<h2>The last step</h2>",
        table(last_steps(records)),
        '<p class="note">Critical path: the chain of work that determined when the step ended. Idle: the mean over the '
        "actors of a role of the share of the step in which they had no work.</p>",
        "<h2>Events</h2>",
        events(records),
        "<h2>Runs</h2>",
        *map(details, records),
    ]
    return document(title, body)


def document(title: str, body: Sequence[str]) -> str:
    """A self-contained page of parts that are HTML already; the title is text."""
    style = files("rlep.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def status(records: Sequence[RunRecord]) -> str:
    """What is not complete, in words; nothing when all is."""
    notes: list[str] = []
    for run in records:
        if run.role != "collection" and not run.finished:
            planned = f" of {run.planned_steps}" if run.planned_steps else ""
            notes.append(f"{run.label}: in progress or interrupted, {len(run.lines)}{planned} steps on record")
        notes += [f"{run.label}: {note}" for note in run.notes]
    if not notes:
        return ""
    return '<ul class="status">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def figure(chart: Chart) -> str:
    """One chart that follows the reader's light or dark background."""
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(raw).decode()}" for raw in (chart.light, chart.dark))
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(chart.title)}"></picture><figcaption>{escape(chart.caption)}</figcaption></figure>'
    )


def table(rows: Sequence[Mapping[str, str]], *, mark: str = "") -> str:
    """Rows of equal columns; the text of column ``mark`` becomes the row's class."""
    if not rows:
        return '<p class="note">Nothing recorded yet.</p>'
    head = "".join(f"<th>{escape(title)}</th>" for title in rows[0])
    lines = "".join(
        f'<tr class="{escape(row.get(mark, "").lower())}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row.values())
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def evaluations(records: Sequence[RunRecord]) -> str:
    """The last evaluation of every run and data source; columns of pass@k that all of them have."""
    rows: list[dict[str, str]] = []
    latest = [
        (run, row)
        for run in records
        for row in {
            (row.data_source, row.samples): row for row in sorted(run.evaluations, key=lambda e: e.step)
        }.values()
    ]
    common = sorted(set.intersection(*(set(row.passes) for _, row in latest)) - {1}) if latest else []
    for run, row in latest:
        interval = "" if row.low is None or row.high is None else f" [{100 * row.low:.1f}, {100 * row.high:.1f}]"
        cells = {
            "run": run.label,
            "data source": row.data_source,
            "step": str(row.step),
            "n": str(row.samples),
            "avg@n": percent(row.avg) + interval,
            "maj@n": percent(row.maj),
            "best@n": percent(row.best),
        }
        rows.append(cells | {f"pass@{k}": percent(row.passes[k]) for k in common})
    return table(rows)


def seconds(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Mean seconds of a step by part, and the totals of what happens between steps."""
    rows: list[dict[str, str]] = []
    for run in records:
        if any("time/step" in line.numbers for line in run.lines):
            cells = {"run": run.label, "step (mean)": _mean(run, "step")}
            cells |= {phase: _mean(run, phase) for phase in PHASES}
            rows.append(cells | {f"{name} (total)": _total(run, name) for name in EXTRAS})
    return rows


def last_steps(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """What the last whole step of each run waited for, and who was idle, where the run left a timeline."""
    pictures = [(run, last_breakdown(run)) for run in records]
    return [
        {
            "run": run.label,
            "step": str(last.number),
            "seconds": f"{last.seconds:.2f}",
            "critical path": ", ".join(
                f"{what} {s:.2f} s ({100 * s / last.seconds:.0f} %)" for what, s in last.path_seconds().items()
            ),
            "idle": ", ".join(f"{role} {100 * share:.0f} %" for role, share in last.idle.items()),
        }
        for run, last in pictures
        if last is not None
    ]


def events(records: Sequence[RunRecord]) -> str:
    """How often what happened."""
    rows = [
        {"run": run.label, "event": name, "times": str(n)} for run in records for name, n in sorted(run.events.items())
    ]
    return (
        f"<details><summary>{counted(sum(int(row['times']) for row in rows), 'event')}</summary>{table(rows)}</details>"
    )


def details(run: RunRecord) -> str:
    """Where a run lies, what made it, and its configuration."""
    facts = {
        "directory": str(run.directory),
        **{k: v if isinstance(v, str) else json.dumps(v) for k, v in run.manifest.items()},
    }
    rows = [{"": key, " ": value} for key, value in facts.items()]
    config = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
    return f"<details><summary>{escape(run.label)}</summary>{table(rows)}<pre>{config}</pre></details>"


def _mean(run: RunRecord, phase: str) -> str:
    values = list(_times(run, phase))
    return f"{fmean(values):.2f}" if values else "–"


def _total(run: RunRecord, phase: str) -> str:
    values = list(_times(run, phase))
    return f"{sum(values):.1f}" if values else "–"


def _times(run: RunRecord, phase: str) -> Iterable[float]:
    return (line.numbers[f"time/{phase}"] for line in run.lines if f"time/{phase}" in line.numbers)
