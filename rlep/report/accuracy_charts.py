"""Charts of the runs beside each other: held-out accuracy, and where the seconds of a step go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlep.core.types import Float64Array
from rlep.report.theme import Theme, empty, per_cent
from rlep.view.record import PHASES, EvaluationPoint, MetricsRow, RunRecord, compute_at, method_of
from rlep.view.summary import BaselineReached, curve, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

COLUMNS = 48
"""Most columns of a stack over steps: more are noise at this size."""


Over = Literal["steps", "minutes", "compute"]
AXES: dict[Over, tuple[str, str]] = {
    "steps": ("Held-out accuracy by step", "training steps behind the evaluated policy"),
    "minutes": ("Held-out accuracy by wall clock", "minutes the run has worked"),
    "compute": ("Held-out accuracy by compute", "million tokens: generated + scored + 3 × trained"),
}
"""Title and label of the accuracy's x axis."""


def accuracy(
    figure: FigureBase,
    theme: Theme,
    runs: Sequence[RunRecord],
    source: str | None,
    *,
    over: Over,
    reached: BaselineReached | None = None,
) -> None:
    """Held-out accuracy of every run on one axis, with the interval over questions and the point of crossing."""
    title, label = AXES[over]
    curves = [(run, [point for point in curve(run, source) if _position(run, point, over) is not None]) for run in runs]
    curves = [(run, points) for run, points in curves if points]
    if not curves:
        empty(figure, theme, title, "no evaluation yet")
        return
    axes = figure.subplots()
    colours = run_colours([run for run, _ in curves], theme)
    for (run, points), colour in reversed(list(zip(curves, colours, strict=True))):  # the main runs on top
        _curve(axes, run, points, colour, over=over)
    if reached is not None:
        _mark(axes, theme, reached, method_of(runs), over=over)
    axes.set_title(title)
    if over == "steps":
        step_axis(axes, label)
    else:
        axes.set_xlabel(label)
    samples = curves[0][1][0].samples
    per_cent(axes, f"correct responses, avg@{samples}" + (f" on {source}" if source else ""))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])  # room for the words at the top
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower right")


def run_colours(runs: Sequence[RunRecord], theme: Theme) -> list[str]:
    """One colour per run: fixed for baseline and RLEP, in turn for the others."""
    controls = iter(theme.controls * len(runs))
    return [
        theme.baseline if run.role == "baseline" else theme.rlep if run.role == "rlep" else next(controls)
        for run in runs
    ]


def anatomy(figure: FigureBase, theme: Theme, runs: Sequence[RunRecord]) -> None:
    """Stacked seconds of every step by role, one small chart per run on a common scale."""
    timed = [(run, lines) for run in runs if (lines := [line for line in run.lines if "time/step" in line.numbers])]
    if not timed:
        empty(figure, theme, "Where the seconds of a step go", "no timed step yet")
        return
    grid = figure.subplots(1, len(timed), sharey=True, squeeze=False)[0]
    tops = [np.quantile([line.numbers["time/step"] for line in lines], 0.98) for _, lines in timed]
    for axes, (run, lines) in zip(grid, timed, strict=True):
        stacked_steps(axes, lines, seconds_by_phase(lines), [theme.phases[name] for name in (*PHASES, "other")])
        typical = float(np.median([line.numbers["time/step"] for line in lines]))
        axes.text(0.02, 0.97, f"{run.label}: {typical:.2f} s a step", transform=axes.transAxes, va="top", fontsize=9)
        axes.set_ylim(0, 1.22 * max(tops) or 1)
    grid[0].set_title("Where the seconds of a step go")
    grid[0].set_ylabel("seconds")
    handles = [_swatch(theme.phases[name], name) for name in (*PHASES, "other")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1, columnspacing=1.0)


def seconds_by_phase(lines: Sequence[MetricsRow]) -> Float64Array:
    """``[phases + 1, steps]``: seconds of each part, and what they leave of the step."""
    parts = np.array([[line.numbers.get(f"time/{phase}", 0.0) for line in lines] for phase in PHASES])
    whole = np.array([line.numbers["time/step"] for line in lines])
    return np.vstack([parts, np.clip(whole - parts.sum(axis=0), 0, None)])


def stacked_steps(axes: Axes, lines: Sequence[MetricsRow], values: Float64Array, colours: Sequence[str]) -> None:
    """A stack of ``values`` ``[bands, steps]`` in at most ``COLUMNS`` columns."""
    edges, heights = columns(np.array([line.step for line in lines], dtype=np.float64), values)
    x = np.repeat(edges, 2)[1:-1]  # both edges of every column: also a single step is seen
    axes.stackplot(x, np.repeat(heights, 2, axis=1), colors=colours, linewidth=0)
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(visible=False, axis="x")
    width = -(-len(lines) // COLUMNS)
    step_axis(axes, "training step" + (f" (mean of {width} in each column)" if width > 1 else ""))


def columns(steps: Float64Array, values: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Edges ``[columns + 1]`` and mean heights ``[bands, columns]`` of equally many steps per column, the last may have fewer."""
    starts = np.arange(0, len(steps), -(-len(steps) // COLUMNS))
    heights = np.add.reduceat(values, starts, axis=1) / np.diff(np.append(starts, len(steps)))
    return np.append(steps[starts] - 0.5, steps[-1] + 0.5), heights


def step_axis(axes: Axes, label: str) -> None:
    """An x axis of whole steps."""
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(label)


def _curve(axes: Axes, run: RunRecord, points: Sequence[EvaluationPoint], colour: str, *, over: Over) -> None:
    main = run.role in ("baseline", "rlep")
    x = [_position(run, row, over) for row in points]
    axes.plot(
        x,
        [row.avg for row in points],
        color=colour,
        linewidth=2.4 if main else 1.3,
        linestyle="-" if main else (0, (4, 2)),
        marker="o" if main else None,
        markersize=3.5,
        label=run.label,
    )
    if main and all(row.low is not None and row.high is not None for row in points):
        bounds = [(row.low or 0.0, row.high or 0.0) for row in points]
        axes.fill_between(x, [low for low, _ in bounds], [high for _, high in bounds], color=colour, alpha=0.13, lw=0)


def _mark(axes: Axes, theme: Theme, at: BaselineReached, method: str, *, over: Over) -> None:
    end = float(at.baseline_step) if over == "steps" else at.baseline_wall_s / 60
    unit = "step" if over == "steps" else "minute"
    name = (
        f"baseline's peak {percent(at.peak)}, {unit} {end:.0f}"
        if over == "steps"
        else f"baseline's peak, {unit} {end:.1f}"
    )
    start = 0.0
    if at.certain and at.rlep_step is not None and at.rlep_wall_s is not None:
        start = float(at.rlep_step) if over == "steps" else at.rlep_wall_s / 60
        reached = f"{start:.0f}" if over == "steps" else f"{start:.1f}"
        name += f"\n{method} there at {unit} {reached}"
        axes.plot([start], [at.peak], "o", markersize=11, markerfacecolor="none", color=theme.rlep, markeredgewidth=1.6)
    axes.hlines(at.peak, min(start, end), max(start, end), color=theme.faint, linewidth=1, linestyle=(0, (2, 2)))
    axes.plot([end], [at.peak], "o", markersize=11, markerfacecolor="none", color=theme.baseline, markeredgewidth=1.6)
    axes.text(0.02, 0.97, name, transform=axes.transAxes, va="top", fontsize=8.5, color=theme.ink, linespacing=1.5)


def _position(run: RunRecord, point: EvaluationPoint, over: Over) -> float | None:
    """Where an evaluation stands; None where the run did not record it."""
    if over == "compute":
        return None if (tokens := compute_at(run, point.step)) is None else tokens / 1e6
    return float(point.step) if over == "steps" else point.wall_s / 60


def _swatch(colour: str, label: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
