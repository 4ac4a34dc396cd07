"""The few numbers that say what a run achieved, and how soon RLEP reached what the baseline reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rlep.view.paired import PairedDifference, area, paired_difference
from rlep.view.record import EvaluationPoint, Role, RunRecord, headline_source, method_of


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in one row; accuracies are shares in 0…1, None where nothing was evaluated yet."""

    label: str
    role: Role
    group: str
    """G + M, e.g. ``16 + 2``; empty when the config is missing."""
    steps: int
    """Training steps on record."""
    planned_steps: int | None
    finished: bool
    start: float | None
    """Accuracy of the first evaluation."""
    peak: float | None
    peak_step: int | None
    final: float | None
    """Accuracy of the last evaluation, from its largest number of samples."""
    final_samples: int | None
    area: float | None
    """Mean accuracy over steps (trapezoids)."""
    seconds_per_step: float | None
    """Median of ``time/step``."""
    wall_s: float | None


@dataclass(frozen=True, slots=True)
class MeanOverSteps:
    """The area under a curve divided by its length, and the areas of its lower and upper bounds.

    An upper bound of the interval: all evaluations ask the same questions, and are taken to err together.
    """

    avg: float
    low: float | None
    high: float | None


ONE_SEED = "One seed of each: the intervals cover the questions, not another run's seed."
Curve = tuple[RunRecord, list[EvaluationPoint]]
Estimate = EvaluationPoint | MeanOverSteps
"""A share with the bounds of its 95 % interval, where they are known."""


@dataclass(frozen=True, slots=True)
class BaselineReached:
    """Where RLEP first reaches the baseline's best accuracy."""

    peak: float
    baseline_step: int
    baseline_wall_s: float
    rlep: EvaluationPoint | None
    """RLEP's evaluation there; None while it has not reached it."""
    baseline: EvaluationPoint | None
    """The baseline's at RLEP's step, or its last before."""
    difference: PairedDifference | None = None
    """RLEP's minus the baseline's there, where the samples of both are of the same questions."""

    @property
    def certain(self) -> bool:
        """True where the paired difference leaves 0 out, or without one the intervals of both do not overlap."""
        if self.difference is not None:
            return self.difference.certain
        return self.rlep is not None and self.baseline is not None and apart(self.rlep, self.baseline)


@dataclass(frozen=True, slots=True)
class Summary:
    """The table of runs and their comparison."""

    data_source: str | None
    """The data source all accuracies are of; ``all`` covers every one."""
    runs: tuple[RunSummary, ...]
    crossing: BaselineReached | None
    means: tuple[MeanOverSteps, MeanOverSteps] | None
    """RLEP's mean accuracy and the baseline's, over the steps at which both were evaluated."""
    difference: PairedDifference | None
    """Of these means, where the samples of both are of the same questions."""
    notes: tuple[str, ...]
    method: str
    """Name of the run with replays: RLEP or live replay."""

    def rows(self) -> list[dict[str, str]]:
        """The table, one mapping of column title to text per run."""
        return [_row(run, self.method) for run in self.runs]

    def headline(self) -> str:
        """One or two sentences on the crossing, or on what is missing to tell."""
        if self.crossing is None:
            return "No comparison yet: it needs evaluations of a run without replays and of one with replays."
        at = self.crossing
        first = f"The baseline peaks at {percent(at.peak)} at step {at.baseline_step}"
        if at.rlep is None:
            text = f"{first}; {self.method} has not reached that."
        else:
            share = f" ({at.rlep.step / at.baseline_step:.0%} of the steps)" if at.baseline_step else ""
            theirs = f"the baseline {with_interval(at.baseline)}{_paired_text(at.difference)}"
            text = f"{first}; {self.method} reaches that at step {at.rlep.step}{share}: {with_interval(at.rlep)} there, {theirs}."
            if not at.certain:
                overlap = "" if at.difference else ", and these intervals overlap"
                text = (
                    f"{first}. Whether {self.method} reaches that sooner is not certain: at step {at.rlep.step} it has "
                    f"{with_interval(at.rlep)}, {theirs}{overlap}."
                )
        if self.means is None:
            return text
        return f"{text} {mean_sentence(self.method, *self.means, self.difference)} {ONE_SEED}"


def summary_of(records: Sequence[RunRecord]) -> Summary:
    """The numbers of runs; the first with M = 0 is the baseline, the first with M > 0 is RLEP."""
    source = headline_source([row for record in records for row in record.evaluations])
    trained = [record for record in records if record.role != "collection"]
    mains = {record.role: (record, curve(record, source)) for record in reversed(trained)}
    base, other = mains.get("baseline"), mains.get("rlep")
    reached, means, difference = _compared(base, other, source) if base and other else (None, None, None)
    return Summary(
        data_source=source,
        runs=tuple(run_summary(record, source) for record in trained),
        crossing=reached,
        means=means,
        difference=difference,
        notes=tuple(f"{record.label}: {note}" for record in records for note in record.notes),
        method=method_of(records),
    )


def _compared(
    base: Curve, other: Curve, source: str | None
) -> tuple[BaselineReached | None, tuple[MeanOverSteps, MeanOverSteps] | None, PairedDifference | None]:
    """The step at which RLEP reaches the baseline, the means of both, and their difference."""
    baseline, rlep = base[1], other[1]
    if not baseline or not rlep:
        return None, None, None
    at = crossing(baseline, rlep)
    if at.rlep is not None and at.baseline is not None:
        at = replace(at, difference=paired_difference((other[0], [at.rlep]), (base[0], [at.baseline]), source))
    means = means_over_steps(baseline, rlep)
    if means is None:
        return at, None, None
    common = {row.step for row in baseline} & {row.step for row in rlep}
    left, right = ((record, [row for row in rows if row.step in common]) for record, rows in (other, base))
    return at, means, paired_difference(left, right, source)


def curve(record: RunRecord, source: str | None) -> list[EvaluationPoint]:
    """One evaluation per step, by step: where a step has several, the one with the usual number of samples."""
    rows = [row for row in record.evaluations if row.data_source == source]
    usual = Counter(row.samples for row in rows).most_common(1)[0][0] if rows else 0
    by_step: dict[int, EvaluationPoint] = {}
    for row in rows:
        if row.step not in by_step or row.samples == usual:
            by_step[row.step] = row
    return [by_step[step] for step in sorted(by_step)]


def run_summary(record: RunRecord, source: str | None) -> RunSummary:
    """The row of one run."""
    points = curve(record, source)
    peak = max(points, key=lambda row: row.avg, default=None)
    ends = [row for row in record.evaluations if points and row.data_source == source and row.step == points[-1].step]
    final = max(ends, key=lambda row: row.samples, default=None)
    seconds = [value for _, value in record.table.points("time/step")]
    walls = [*record.table.wall_s, *(row.wall_s for row in points)]
    return RunSummary(
        label=record.label,
        role=record.role,
        group="" if record.fresh is None else f"{record.fresh} + {record.replays}",
        steps=record.table.made,
        planned_steps=record.planned_steps,
        finished=record.finished,
        start=points[0].avg if points else None,
        peak=peak.avg if peak else None,
        peak_step=peak.step if peak else None,
        final=final.avg if final else None,
        final_samples=final.samples if final else None,
        area=area(points, [point.avg for point in points]),
        seconds_per_step=median(seconds) if seconds else None,
        wall_s=max(walls, default=None),
    )


def crossing(baseline: Sequence[EvaluationPoint], rlep: Sequence[EvaluationPoint]) -> BaselineReached:
    """The baseline's peak (the first, of equals) and RLEP's first evaluation that is not below it."""
    peak = max(baseline, key=lambda row: row.avg)
    reached = next((row for row in rlep if row.avg >= peak.avg), None)
    before = [row for row in baseline if reached and row.step <= reached.step]
    return BaselineReached(
        peak=peak.avg,
        baseline_step=peak.step,
        baseline_wall_s=peak.wall_s,
        rlep=reached,
        baseline=before[-1] if before else None,
    )


def mean_over_steps(points: Sequence[EvaluationPoint]) -> MeanOverSteps | None:
    """Of a whole curve; None without at least two points."""
    avg = area(points, [point.avg for point in points])
    low, high = [point.low for point in points], [point.high for point in points]
    bounds = [None if None in bound else area(points, [x for x in bound if x is not None]) for bound in (low, high)]
    return None if avg is None else MeanOverSteps(avg, *bounds)


def means_over_steps(
    baseline: Sequence[EvaluationPoint], rlep: Sequence[EvaluationPoint]
) -> tuple[MeanOverSteps, MeanOverSteps] | None:
    """RLEP's and the baseline's over the steps that both have; None without at least two."""
    common = {row.step for row in baseline} & {row.step for row in rlep}
    first, second = (mean_over_steps([row for row in rows if row.step in common]) for rows in (rlep, baseline))
    return None if first is None or second is None else (first, second)


def mean_sentence(
    method: str, rlep: MeanOverSteps, baseline: MeanOverSteps, difference: PairedDifference | None = None
) -> str:
    """The difference of the means, claimed only where their paired difference is certain, or their intervals do not overlap."""
    both = f"{method} has {with_interval(rlep)}, the baseline {with_interval(baseline)}{_paired_text(difference)}"
    if difference is not None and not difference.certain:
        return f"Averaged over the steps, {both}: not told apart."
    if difference is not None or apart(rlep, baseline):
        side = "above" if rlep.avg > baseline.avg else "below"
        points = f"{100 * abs(rlep.avg - baseline.avg):.1f} points"
        return f"Averaged over the steps, {method} is {points} {side} the baseline: {both}."
    return (
        f"Averaged over the steps, {both}: the intervals overlap, and without the samples of both runs (samples/) their "
        "questions cannot be compared in pairs."
    )


def _paired_text(difference: PairedDifference | None) -> str:
    return "" if difference is None else f"; question by question {difference.text()}"


def apart(a: Estimate, b: Estimate) -> bool:
    """True for intervals that do not overlap; without intervals nothing is certain."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low > b.high or b.low > a.high


def percent(share: float | None) -> str:
    """``40.6%``, or a dash."""
    return "–" if share is None else f"{100 * share:.1f}%"


def with_interval(point: Estimate | None) -> str:
    """``40.6% [35.1, 46.0]``: an accuracy with its 95 % interval, as far as they are known."""
    if point is None:
        return "no evaluation"
    if point.low is None or point.high is None:
        return f"{percent(point.avg)} [no interval]"
    return f"{percent(point.avg)} [{100 * point.low:.1f}, {100 * point.high:.1f}]"


def _row(run: RunSummary, method: str) -> dict[str, str]:
    steps = f"{run.steps}" if run.finished or run.planned_steps is None else f"{run.steps} of {run.planned_steps}"
    at_peak = "" if run.peak_step is None else f" at step {run.peak_step}"
    samples = "" if run.final_samples is None else f" (n = {run.final_samples})"
    return {
        "run": run.label,
        "role": method if run.role == "rlep" else run.role,
        "G + M": run.group,
        "steps": steps,
        "start": percent(run.start),
        "peak": percent(run.peak) + at_peak,
        "final": percent(run.final) + samples,
        "mean over steps": percent(run.area),
        "s per step": "–" if run.seconds_per_step is None else f"{run.seconds_per_step:.2f}",
        "minutes": "–" if run.wall_s is None else f"{run.wall_s / 60:.1f}",
    }
