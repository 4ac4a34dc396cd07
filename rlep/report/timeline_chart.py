"""The last steps as they went: one track for each actor, what it did when, and what the last step waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlep.report.theme import Theme, empty
from rlep.view.last_steps import Bars, bars_of, last_breakdown, last_steps, tracks
from rlep.view.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

LABELS = 24
"""Most tracks that are all named."""


def timeline(figure: FigureBase, theme: Theme, run: RunRecord | None) -> None:
    """A track for each actor over the last steps; the critical path of the last one is outlined."""
    title = "Who did what in the last steps" + (f" ({run.label})" if run else "")
    steps, spans = last_steps(run)
    if run is None or not steps:
        empty(figure, theme, title, "no whole step in timeline.json")
        return
    begin, end = steps[0].begin, steps[-1].end
    bars = bars_of(spans, begin, end)
    rows = {actor: row for row, actor in enumerate(tracks(bars))}
    axes = figure.subplots()
    for actor, row in rows.items():
        for phase, pieces in bars[actor].items():
            axes.broken_barh(pieces, (row - 0.4, 0.8), facecolors=theme.phases[phase], linewidth=0)
    breakdown = last_breakdown(run)
    for link in breakdown.path if breakdown else ():
        place = (link.begin - begin, link.end - link.begin)
        axes.broken_barh([place], (rows[link.actor] - 0.4, 0.8), facecolors="none", edgecolors=theme.ink, linewidth=1.1)
    for step in steps:
        axes.axvline(step.begin - begin, color=theme.faint, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.text(step.begin - begin, -0.6, f" step {step.count}", color=theme.faint, fontsize=8, va="bottom")
    _axes(axes, list(rows), end - begin)
    axes.set_title(title, pad=18)
    _legend(figure, theme, bars)


def _axes(axes: Axes, names: Sequence[str], seconds: float) -> None:
    every = -(-len(names) // LABELS)
    axes.set_yticks(range(0, len(names), every), names[::every])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds (outlined: the critical path of the last step)")
    axes.grid(visible=False, axis="y")


def _legend(figure: FigureBase, theme: Theme, bars: Bars) -> None:
    from matplotlib.patches import Patch

    drawn = {phase for track in bars.values() for phase in track}
    handles = [Patch(color=colour, label=phase) for phase, colour in theme.phases.items() if phase in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1, columnspacing=1.0)
