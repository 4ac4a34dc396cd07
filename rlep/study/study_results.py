"""Results of an arm's runs from their files: its compute, and its held-out accuracy over it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlep.core.errors import DataError
from rlep.core.files import write_whole
from rlep.core.jsonl import last_line
from rlep.core.types import Float64Array
from rlep.study.study_plan import PhasePlan
from rlep.view.record import compute_at, compute_of_line, load_run
from rlep.view.run_files import RunPlace
from rlep.view.samples import Samples, read_samples
from rlep.view.state import complete_mark

SHORT = 0.98
"""Share of the budget below which an arm's last evaluation leaves a part of it unused: it is named."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One evaluation of an arm's present policy."""

    compute: float
    """Generated + scored + 3 × trained tokens of the arm so far, earlier phases and collections included; after the step that
    reached a point of the study's grid, that point."""
    seconds: float
    """Time that the arm's runs have worked so far."""
    step: int
    """Training steps of the arm so far."""
    samples: Samples


@dataclass(frozen=True, slots=True, eq=False)
class ArmRun:
    """An arm under one seed."""

    questions: tuple[str, ...]
    points: tuple[Point, ...]
    compute: float
    """All that it took: the budget, and a step or two until it was stopped, or less."""
    uncharged: float = 0.0
    """Compute of what was there before it began: of phases with seeds of their own."""

    def within(self, budget: float) -> tuple[Point, ...]:
        """The evaluations that the budget pays for."""
        return tuple(point for point in self.points if point.compute <= budget)

    def area(self, budget: float) -> Float64Array:
        """Mean accuracy over compute from 0 to the budget, ``[Q]``; each evaluation holds until the next one.

        The first, which is the base model's, also holds before: an arm may begin with a collection.
        """
        points = self.within(budget)
        between = [point.compute for point in points[1:]]
        starts, ends = [0.0, *between], [*between, budget]
        return np.asarray(
            sum((end - start) * one.samples.accuracy for one, start, end in zip(points, starts, ends, strict=True))
            / budget,
            dtype=np.float64,
        )

    def lost(self, budget: float, parts: int) -> tuple[int, int]:
        """Questions that were solved before and are not at the last evaluation, and all that were solved before.

        Looked at after each of ``parts`` equal parts of the budget, where the latest evaluation holds, and each time by as many
        samples: a run with more evaluations, or more samples at the end, has no more chances than another.
        """
        *_, last = points = self.within(budget)
        held = [
            max(
                (point for point in points if point.compute <= budget * part / parts),
                key=points.index,
                default=points[0],
            )
            for part in range(parts)
        ]
        samples = min(point.samples.count for point in (*held, last))
        ever = np.any([point.samples.first < samples for point in held], axis=0)
        return int((ever & (last.samples.first >= samples)).sum()), int(ever.sum())


def arm_figures(phases: Sequence[PhasePlan], budget: float, grid: Sequence[float] = ()) -> ArmRun:
    """Figures of a complete arm: those kept in its last phase's mark, else ``read_arm``'s, which are kept there.

    So an arm outlives the files of its runs, and goes to another machine with its mark. Raises DataError as ``read_arm`` does,
    and for a mark that cannot be read.
    """
    mark = complete_mark(phases[-1].directory)
    if kept := mark.read_text() if mark.exists() else "":
        try:
            plain = json.loads(kept)
            if "uncharged" not in plain:  # kept by an earlier version
                plain["uncharged"] = _uncharged(phases)
            return _parsed(plain)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{mark} has no figures of an arm: {error!r}; without it the arm is run again") from None
    run = read_arm(phases, budget, grid)
    if mark.exists():
        write_whole(mark, json.dumps(_plain(run), separators=(",", ":")) + "\n")
    return run


def _plain(run: ArmRun) -> dict[str, Any]:
    points = [
        {
            "compute": point.compute,
            "seconds": point.seconds,
            "step": point.step,
            "samples": point.samples.count,
            "correct": np.rint(point.samples.accuracy * point.samples.count).astype(int).tolist(),
            "distinct": point.samples.distinct.astype(int).tolist(),
            "first": np.minimum(point.samples.first, point.samples.count).tolist(),
        }
        for point in run.points
    ]
    return {
        "compute": run.compute,
        "uncharged": run.uncharged,
        "questions": list(run.questions),
        "points": points,
    }


def _parsed(plain: Mapping[str, Any]) -> ArmRun:
    questions, points = tuple(map(str, plain["questions"])), list[Point]()
    for one in plain["points"]:
        count = int(one["samples"])
        right, distinct, first = (np.array(one[key], dtype=np.int64) for key in ("correct", "distinct", "first"))
        if {right.shape, distinct.shape, first.shape} != {(len(questions),)}:
            raise ValueError(f"step {one['step']}: not one number for each of {len(questions)} questions")
        accuracy, best = (right / count).astype(np.float64), (right > 0).astype(np.float64)
        samples = Samples(questions, accuracy, best, distinct.astype(np.float64), count, first)
        points.append(Point(float(one["compute"]), float(one["seconds"]), int(one["step"]), samples))
    return ArmRun(questions, tuple(points), float(plain["compute"]), float(plain["uncharged"]))


def read_arm(phases: Sequence[PhasePlan], budget: float, grid: Sequence[float] = ()) -> ArmRun:
    """Read the finished runs of an arm's phases; ``grid``: compute that it is evaluated at.

    Raises DataError naming the file that is missing or says too little.
    """
    compute = seconds = 0.0
    steps = 0
    points: list[Point] = []
    questions: tuple[str, ...] = ()
    for phase in (one for one in phases if one.charged):
        if phase.command == "collect":
            tokens, wall_s = _collection(phase.directory / "collection.json")
            compute, seconds = compute + tokens, seconds + wall_s
            continue
        if not phase.directory.exists():
            raise DataError(f"{phase.directory}: not run yet")
        run = load_run(phase.directory, taken=set())
        made = run.table.made
        last = compute_at(run.table, made)
        if last is None:
            raise DataError(f"{phase.directory}: metrics.jsonl has no compute/… after step {made}")
        if made < phase.config.run.steps and (phase is not phases[-1] or compute + last <= budget):
            raise DataError(f"{phase.directory}: only {made} of its {phase.config.run.steps} steps are there")
        evaluated = {row.step: row.wall_s for row in run.evaluations if row.step <= made}
        for step in sorted(evaluated):
            at = compute_at(run.table, step)
            if at is None:
                raise DataError(f"{phase.directory}: metrics.jsonl has no compute/… after step {step}")
            try:
                found = read_samples(RunPlace(phase.directory.name, phase.directory), step)
            except DataError as error:
                raise DataError(f"{phase.directory}: {error}") from None
            if questions and found.questions != questions:
                raise DataError(
                    f"{phase.directory}: its evaluation at step {step} has other questions than the first one"
                )
            questions = found.questions
            begun = compute + ((compute_at(run.table, step - 1) or 0.0) if step else at)
            at = max((mark for mark in grid if begun < mark <= compute + at), default=compute + at)
            points.append(Point(at, seconds + evaluated[step], steps + step, found))
        compute, steps = compute + last, steps + made
        seconds += run.table.wall_s[-1] if len(run.table) else 0.0
    if not points:
        raise DataError(f"{phases[-1].directory}: no evaluation; set data.evaluation")
    return ArmRun(questions, tuple(points), compute, _uncharged(phases))


def _uncharged(phases: Sequence[PhasePlan]) -> float:
    """Compute of the phases that are not charged. Raises DataError where the files of one are not here."""
    taken = 0.0
    for phase in (one for one in phases if not one.charged):
        if not (one := taken_by(phase)):
            raise DataError(f"{phase.directory}: not run here, so what it took is not known")
        taken += one
    return taken


def taken_by(phase: PhasePlan) -> float:
    """Compute that a phase's files say it has taken so far, 0 where there are none."""
    if phase.command == "collect":
        path = phase.directory / "collection.json"
        return _collection(path)[0] if path.exists() else 0.0
    metrics = last_line(phase.directory / "metrics.jsonl").get("metrics", {})
    return float(compute_of_line(metrics) or 0.0)


def _collection(path: Path) -> tuple[float, float]:
    try:
        found = json.loads(path.read_text())
        return float(found["generated_tokens"]), float(found["wall_s"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} does not say what the collection took: {error}") from None
