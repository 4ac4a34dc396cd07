"""Two runs over the same questions: the difference question by question, which says more than two intervals beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlep.algorithms.evaluation import paired
from rlep.core.errors import DataError
from rlep.view.record import ALL, EvaluationPoint, RunRecord
from rlep.view.run_files import RunPlace
from rlep.view.samples import Samples, read_samples

AS_LOGGED = 1e-6
"""Largest difference between the mean of an evaluation's samples and what ``evaluations.jsonl`` says."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Accuracy of one run minus that of another, mean over the questions that both were asked; shares."""

    value: float
    low: float | None
    high: float | None
    """Ends of the 95 % interval over questions; None with one question."""

    @property
    def certain(self) -> bool:
        """True where the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def text(self) -> str:
        """``+7.2 points [+5.5, +8.9]``."""
        if self.low is None or self.high is None:
            return f"{100 * self.value:+.1f} points [no interval]"
        return f"{100 * self.value:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def paired_difference(
    left: tuple[RunRecord, Sequence[EvaluationPoint]],
    right: tuple[RunRecord, Sequence[EvaluationPoint]],
    source: str | None,
) -> PairedDifference | None:
    """The first run minus the second, each at one evaluation, or its mean over the steps of several.

    None where the samples of an evaluation are not there, do not belong to it, or are of other questions.
    """
    means = []
    questions: tuple[str, ...] | None = None
    for record, points in (left, right):
        found = [_samples(record, point, source) for point in points]
        if not all(
            samples is not None and samples.questions == (questions := questions or samples.questions)
            for samples in found
        ):
            return None
        weights = [1.0] if len(points) == 1 else [area(points, row.tolist()) or 0.0 for row in np.eye(len(points))]
        accuracies = [samples.accuracy for samples in found if samples is not None]
        means.append(np.asarray(np.array(weights) @ np.array(accuracies), dtype=np.float64))  # [Q]
    estimate = paired(*means, address="report")
    return PairedDifference(estimate.value, estimate.low, estimate.high)


def area(points: Sequence[EvaluationPoint], values: Sequence[float]) -> float | None:
    """Mean of ``values``, one a point, over the steps by trapezoids; None without at least two points."""
    if len(points) < 2:
        return None
    pairs = itertools.pairwise(zip([point.step for point in points], values, strict=True))
    return sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairs) / (points[-1].step - points[0].step)


def _samples(record: RunRecord, point: EvaluationPoint, source: str | None) -> Samples | None:
    place = RunPlace(record.directory.name, record.directory)
    try:
        found = read_samples(place, point.step, None if source == ALL else source)
    except DataError:
        return None  # the report compares the intervals then, and says so
    if not found.questions or abs(float(found.accuracy.mean()) - point.avg) > AS_LOGGED:
        return None
    return found
