"""``study.json`` and the pages of a study, from the files of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from rlep.algorithms.evaluation import ks_for, pass_at_k
from rlep.core.files import replace_with
from rlep.core.types import Float64Array
from rlep.report.build import Panel, picture, svg
from rlep.report.page import Chart, document, figure, table
from rlep.report.theme import DARK, LIGHT, Theme, per_cent
from rlep.study.study_plan import Study
from rlep.study.study_results import SHORT, ArmRun, Point
from rlep.study.study_runner import Failed, Pipeline
from rlep.study.study_statistics import Paired, holm, paired
from rlep.view.samples import Samples
from rlep.view.study_tables import arm_rows, comparison_rows, notes_of

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

Endpoint = Literal["area", "final", "pass"]
Over = Literal["compute", "step", "seconds"]
Of = Literal["accuracy", "pass@n"]
_LABELS: dict[Over, str] = {
    "compute": "million tokens: generated + scored + 3 × trained",
    "step": "training steps of all phases",
    "seconds": "minutes that the runs have worked",
}
PANELS: tuple[tuple[Of, Over], ...] = (
    *(("accuracy", over) for over in ("compute", "step", "seconds")),
    ("pass@n", "compute"),
)
_SCALE: dict[Over, float] = {"compute": 1e6, "step": 1.0, "seconds": 60.0}


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a study."""

    study: Study
    runs: Mapping[Pipeline, ArmRun]
    failed: Mapping[Pipeline, Failed]
    tuned: Mapping[str, Any]
    """Arm → the value that its tuning chose."""
    notes: Sequence[str] = ()
    """Values that tuning could not try, and why."""

    def of(self, arm: str) -> dict[int, ArmRun]:
        """Seed → run, of the test seeds that have one."""
        return {seed: self.runs[arm, seed] for seed in self.study.study.seeds if (arm, seed) in self.runs}


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against a control, over the seeds that both have."""

    arm: str
    control: str
    endpoint: Endpoint
    seeds: tuple[int, ...]
    paired: Paired
    p_holm: float | None
    """Adjusted over the arms, against the control that is best at the endpoint; None against the others."""


def endpoint_of(run: ArmRun, endpoint: Endpoint, budget: float) -> Float64Array:
    """``[Q]``: the area, or accuracy or pass@n at the last evaluation that the budget pays for."""
    if endpoint == "area":
        return run.area(budget)
    last = run.within(budget)[-1].samples
    return last.accuracy if endpoint == "final" else last.best


def best_control(found: Found, endpoint: Endpoint = "area") -> str | None:
    """The control with the largest mean of an endpoint."""
    budget = found.study.study.budget
    means = {
        arm.name: np.mean([endpoint_of(run, endpoint, budget).mean() for run in found.of(arm.name).values()])
        for arm in found.study.arm
        if arm.control and found.of(arm.name)
    }
    return max(means, key=lambda name: means[name]) if means else None


def comparisons(found: Found) -> list[Comparison]:
    """Every arm with every control, for each endpoint."""
    rows: list[Comparison] = []
    budget = found.study.study.budget
    controls = [arm.name for arm in found.study.arm if arm.control]
    for endpoint in get_args(Endpoint):
        best, made = best_control(found, endpoint), list[Comparison]()
        for control in controls:
            for arm in (one.name for one in found.study.arm if one.name not in controls):
                left, right = found.of(arm), found.of(control)
                seeds = tuple(seed for seed in left if seed in right)
                if not seeds:
                    continue
                differences = [
                    endpoint_of(left[seed], endpoint, budget) - endpoint_of(right[seed], endpoint, budget)
                    for seed in seeds
                ]
                made.append(Comparison(arm, control, endpoint, seeds, paired(np.array(differences)), None))
        against = [row for row in made if row.control == best]
        adjusted = dict(zip(map(id, against), holm([row.paired.p for row in against]), strict=True))
        rows += [
            Comparison(row.arm, row.control, row.endpoint, row.seeds, row.paired, adjusted.get(id(row))) for row in made
        ]
    return rows


def summary(found: Found) -> dict[str, Any]:
    """What ``study.json`` holds."""
    spec = found.study.study
    arms = []
    for arm in found.study.arm:
        runs = {str(seed): _figures(run, spec.budget) for seed, run in found.of(arm.name).items()}
        failed = {str(seed): asdict(why) for (name, seed), why in found.failed.items() if name == arm.name}
        row: dict[str, Any] = {"name": arm.name, "control": arm.control, "seeds": runs, "failed": failed}
        arms.append(row | ({"tuned": found.tuned[arm.name]} if arm.name in found.tuned else {}))
    return {
        "name": spec.name,
        "budget": spec.budget,
        "seeds": list(spec.seeds),
        "best_control": best_control(found),
        "arms": arms,
        "notes": list(found.notes),
        "comparisons": [asdict(row) for row in comparisons(found)],
    }


def _figures(run: ArmRun, budget: float) -> dict[str, Any]:
    points = run.within(budget)
    last = points[-1]
    return {
        "compute": min(run.compute, budget),  # when it was stopped beyond that is up to the clock
        "reached": last.compute / budget,
        "short": run.compute < SHORT * budget,
        "area": float(run.area(budget).mean()),
        "final": float(last.samples.accuracy.mean()),
        "samples": last.samples.count,
        "pass": float(last.samples.best.mean()),
        "distinct": float(last.samples.distinct.mean()),
        "lost": run.lost(budget),
        "pass_at": {str(k): float(_pass_at(last, k).mean()) for k in ks_for(last.samples.count)},
        "curve": [
            [one.compute, one.step, one.seconds, float(one.samples.accuracy.mean()), float(one.samples.best.mean())]
            for one in points
        ],
    }


def _pass_at(point: Point, k: int) -> Float64Array:
    right = np.rint(point.samples.accuracy * point.samples.count).astype(np.int64)
    return pass_at_k(right, point.samples.count, k)


def write_report(found: Found) -> Path:
    """Write ``study.json``, ``study.html`` and ``study.png`` into the study's directory; returns the page's path."""
    directory = found.study.study.directory
    directory.mkdir(parents=True, exist_ok=True)
    whole = summary(found)
    _write(directory / "study.json", json.dumps(whole, indent=1).encode() + b"\n")
    panels = [
        Panel(f"Held-out {of} over {over}", _caption(found, over), partial(curves, found=found, over=over, of=of))
        for of, over in PANELS
    ]
    _write(directory / "study.png", picture(panels))
    charts = [Chart(one.title, one.caption, svg(one, LIGHT), svg(one, DARK)) for one in panels]
    _write(directory / "study.html", _page(found, whole, charts).encode())
    return directory / "study.html"


def _write(path: Path, content: bytes) -> None:
    with replace_with(path) as part:
        part.write_bytes(content)


def _caption(found: Found, over: Over) -> str:
    text = "Means over questions and seeds; thin lines are the seeds, dashed ones controls. Earlier phases and collections count."
    return f"{text} The line is the budget." if over == "compute" else text


def curves(figure: FigureBase, theme: Theme, found: Found, over: Over, of: Of) -> None:
    """Accuracy or pass@n of every arm; each evaluation holds until the next one."""
    axes, budget = figure.subplots(), found.study.study.budget
    colours = iter((theme.baseline, theme.rlep, *theme.controls) * len(found.study.arm))
    for arm in found.study.arm:
        style, colour = "--" if arm.control else "-", next(colours)
        drawn = [
            (
                [getattr(point, over) / _SCALE[over] for point in run.within(budget)],
                [_value(point.samples, of) for point in run.within(budget)],
            )
            for run in found.of(arm.name).values()
        ]
        for x, y in drawn:
            axes.step(x, y, where="post", color=colour, linestyle=style, linewidth=0.7, alpha=0.45)
        if drawn and len({len(x) for x, _ in drawn}) == 1:  # the seeds were evaluated at the same steps
            means = np.mean(drawn, axis=0)
            axes.step(*means, where="post", color=colour, linestyle=style, linewidth=2, label=arm.name)
    if over == "compute":
        axes.axvline(budget / _SCALE[over], color=theme.faint, linewidth=1)
    axes.set_title(f"Held-out {of} over {over}")
    axes.set_xlabel(_LABELS[over])
    per_cent(axes, "correct responses" if of == "accuracy" else "questions with a correct response")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")


def _value(samples: Samples, of: Of) -> float:
    return float((samples.accuracy if of == "accuracy" else samples.best).mean())


def _page(found: Found, whole: Mapping[str, Any], charts: Sequence[Chart]) -> str:
    title, spec = found.study.study.name, found.study.study
    notes = notes_of(whole)
    seeds = len(spec.seeds)
    chance = f"p: all sign patterns of {seeds} seeds, at least {2 / 2**seeds:.3g}; " if seeds > 1 else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">All arms at {spec.budget / 1e6:g} million tokens: generated + scored + 3 × trained.</p>',
        '<ul class="status">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else "",
        "<h2>Arms</h2>",
        table(arm_rows(whole)),
        "<h2>Differences</h2>",
        table(comparison_rows(whole)),
        '<p class="note">Area: mean accuracy over compute. Intervals: bootstrap over seeds, then questions, 95 %. '
        f"{chance}Holm's correction over the arms, against the control that is best at the endpoint.</p>",
        '<div class="charts">' + "".join(map(figure, charts)) + "</div>",
    ]
    return document(title, body)
