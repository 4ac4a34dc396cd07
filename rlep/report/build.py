"""Run directories in, one HTML page and one picture out."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlep.report.accuracy_charts import AXES, accuracy, anatomy
from rlep.report.charts_replay import coverage, coverage_text, gradient, groups, retention
from rlep.report.page import Chart, page
from rlep.report.theme import DARK, LIGHT, Theme, rc
from rlep.report.timeline_chart import timeline
from rlep.view.record import LIVE, RunRecord, load_runs, method_of
from rlep.view.summary import Summary, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where the report lies."""

    html: Path
    png: Path


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: what it draws, and what it says to one who cannot see it."""

    title: str
    caption: str
    draw: Callable[[FigureBase, Theme], None]


def build_report(run_directories: Sequence[Path], out: Path) -> ReportFiles:
    """Write ``report.html`` (self-contained) and ``report.png`` into the directory ``out``.

    Runs may be in progress and files may be missing: the page shows what there is and says what is not.
    DataError for a path that is not a directory.
    """
    records = load_runs(run_directories)
    found = summary_of(records)
    panels = panels_of(records, found)
    files = ReportFiles(out / "report.html", out / "report.png")
    out.mkdir(parents=True, exist_ok=True)
    files.png.write_bytes(picture(panels))
    charts = [Chart(p.title, p.caption, svg(p, LIGHT), svg(p, DARK)) for p in panels]
    files.html.write_text(page(records, found, charts), encoding="utf-8")
    return files


def panels_of(records: Sequence[RunRecord], found: Summary) -> list[Panel]:
    """The charts, in the order of page and picture: six, and those of counters and of a timeline where a run left them."""
    source, reached = found.data_source, found.crossing
    trained = sorted((r for r in records if r.role != "collection"), key=_prominence)
    main = [run for run in trained if run.role in ("baseline", "rlep")] or trained[:1]
    rlep = next((run for run in trained if run.role == "rlep"), None)
    method = method_of(records)
    clock = "" if method == LIVE else " RLEP's clock does not contain what its pool cost."
    timed = next((run for run in (*([rlep] if rlep else []), *trained) if run.spans), None)
    collection = next((r.collection for r in sorted(records, key=_prominence) if r.collection), None)
    return [
        Panel(
            "Held-out accuracy by step",
            "Mean over questions; the band is the 95 % interval over questions. Rings: the baseline's best "
            f"evaluation, and {method}'s first that is not below it, where the difference there is certain.",
            partial(accuracy, runs=trained, source=source, over="steps", reached=reached),
        ),
        Panel(
            "Held-out accuracy by wall clock",
            f"The clock of a run counts from its own start, with evaluations and without pauses.{clock}"
            + _cost(collection.wall_s if collection else None),
            partial(accuracy, runs=trained, source=source, over="minutes", reached=reached),
        ),
        Panel(
            "Where the seconds of a step go",
            "What the step waited for, from the first request to the confirmed new weights. Work that runs meanwhile "
            "(verdicts, replay draws) shows only where it is waited for.",
            partial(anatomy, runs=main),
        ),
        Panel(
            "What the groups are made of",
            "Each group holds the G fresh responses to one question. All wrong or all right teaches nothing by itself; "
            "a replay gives an all-wrong group something to learn from.",
            partial(groups, run=rlep or (trained[0] if trained else None)),
        ),
        Panel(
            "How much the replays weigh, and how likely they are",
            "Advantage mass: the sum of |advantage| over tokens in the loss. Log-probs rise where the policy learns the "
            "replayed responses.",
            partial(gradient, run=rlep),
        ),
        Panel(
            "What the pool covers",
            coverage_text(collection).replace("\n", ", "),
            partial(coverage, collection=collection),
        ),
        *_counted(trained, source),
        *([_timeline(timed)] if timed else []),
    ]


def _counted(trained: Sequence[RunRecord], source: str | None) -> list[Panel]:
    """Charts of what a run counts from step to step, where one did."""
    if not any("compute/trained_tokens" in line.numbers for run in trained for line in run.lines):
        return []
    return [
        Panel(
            AXES["compute"][0],
            "Every token that went through the model in the run, prompts included. A pool costs more: what the run behind it "
            "and the collection took is not in this figure.",
            partial(accuracy, runs=trained, source=source, over="compute"),
        ),
        Panel(
            "Questions solved, and lost again",
            "Lost: solved by a fresh response at an earlier visit, and by none at this one; a mean over 16 steps.",
            partial(retention, runs=trained),
        ),
    ]


def _timeline(run: RunRecord) -> Panel:
    return Panel(
        "Who did what in the last steps",
        "One track for each actor, by the driver's clock. Outlined: the chain of work that determined when the last whole "
        "step ended; numbers below.",
        partial(timeline, run=run),
    )


def picture(panels: Sequence[Panel]) -> bytes:
    """All panels on one light PNG, two in a row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(rc(LIGHT)):
        figure = Figure(figsize=(13, 4.1 * ((len(panels) + 1) // 2)), layout="constrained")
        cells = figure.subfigures((len(panels) + 1) // 2, 2, wspace=0.03, hspace=0.04).ravel()
        for cell, panel in zip(cells, panels, strict=False):
            panel.draw(cell, LIGHT)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def svg(panel: Panel, theme: Theme) -> bytes:
    """One panel as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(rc(theme)):
        figure = Figure(figsize=(6.8, 4.3), layout="constrained")
        panel.draw(figure, theme)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _prominence(run: RunRecord) -> int:
    return ("baseline", "rlep", "control", "collection").index(run.role)


def _cost(wall_s: float | None) -> str:
    return f" Collecting it took {wall_s / 60:.1f} minutes." if wall_s is not None else ""
