"""``study.json`` and the pages of a study, from the files of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlep.algorithms.evaluation import ks_for, pass_at_k
from rlep.core.files import write_whole
from rlep.core.types import Float64Array
from rlep.study.study_plan import Endpoint, Replicate, Study
from rlep.study.study_results import SHORT, ArmRun, Point
from rlep.study.study_runner import Failed, Pipeline
from rlep.study.study_statistics import Paired, holm, paired
from rlep.view.study_pages import study_file

PARTS = 10
"""Of the budget, after which lost questions are looked for where the study has no grid of its own."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A value that tuning tried for an arm."""

    arm: str
    values: Mapping[str, Any]
    runs: Mapping[Replicate, ArmRun]
    """Of every tuning seed."""


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a study as far as they are there."""

    study: Study
    runs: Mapping[Pipeline, ArmRun]
    failed: Mapping[Pipeline, Failed]
    tuned: Mapping[str, Any]
    """Arm → the value that its tuning chose."""
    tuning: Sequence[Tried] = ()
    notes: Sequence[str] = ()
    """Values that tuning could not try, and why."""

    def of(self, arm: str) -> dict[Replicate, ArmRun]:
        """Seed, or base and seed → run, of the test seeds that have one."""
        spec = self.study.study
        return {seed: self.runs[arm, seed] for seed in spec.replicates(spec.seeds) if (arm, seed) in self.runs}


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against a control, over the seeds that both have."""

    arm: str
    control: str
    endpoint: Endpoint
    seeds: tuple[Replicate, ...]
    paired: Paired
    p_holm: float | None
    """Adjusted over the family of claims, against the control that is best at the endpoint; None for what is no claim."""
    by_base: Mapping[str, float]
    """Mean difference of each base; empty where there is one."""


def endpoint_of(run: ArmRun, endpoint: Endpoint, budget: float) -> Float64Array:
    """``[Q]``: the area, or accuracy, pass@n or pass@k at the last evaluation that the budget pays for."""
    if endpoint == "area":
        return run.area(budget)
    last = run.within(budget)[-1]
    if endpoint == "final":
        return last.samples.accuracy
    return pass_at(last, int(endpoint.partition("@")[2] or last.samples.count))


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
    spec = found.study.study
    rows = [row for endpoint in spec.endpoints for row in _compared(found, endpoint)]
    adjusted: dict[int, float] = {}
    for family in [spec.claims] if spec.claims else [(endpoint,) for endpoint in spec.endpoints]:
        best = {endpoint: best_control(found, endpoint) for endpoint in family}
        claims = [index for index, row in enumerate(rows) if best.get(row.endpoint) == row.control]
        adjusted |= zip(claims, holm([rows[index].paired.p for index in claims]), strict=True)
    return [replace(row, p_holm=adjusted.get(index)) for index, row in enumerate(rows)]


def _compared(found: Found, endpoint: Endpoint) -> list[Comparison]:
    """Every arm with every control at an endpoint."""
    spec, rows = found.study.study, list[Comparison]()
    controls = [arm.name for arm in found.study.arm if arm.control]
    for control in controls:
        for arm in (one.name for one in found.study.arm if one.name not in controls):
            left, right = found.of(arm), found.of(control)
            seeds = tuple(seed for seed in left if seed in right)
            if not seeds:
                continue
            difference = [
                endpoint_of(left[seed], endpoint, spec.budget) - endpoint_of(right[seed], endpoint, spec.budget)
                for seed in seeds
            ]
            result = paired(np.array(difference))
            bases: dict[str, list[float]] = {}
            for seed, mean in zip(seeds, result.by_seed, strict=True):
                bases.setdefault(spec.parts_of(seed)[0], []).append(mean)
            by_base = {base: float(np.mean(means)) for base, means in bases.items() if base}
            rows.append(Comparison(arm, control, endpoint, seeds, result, None, by_base))
    return rows


def summary(found: Found) -> dict[str, Any]:
    """Return the content of ``study.json``."""
    spec = found.study.study
    arms = []
    for arm in found.study.arm:
        runs = {str(seed): _figures(run, found.study) for seed, run in found.of(arm.name).items()}
        failed = {str(seed): asdict(why) for (name, seed), why in found.failed.items() if name == arm.name}
        row: dict[str, Any] = {"name": arm.name, "control": arm.control, "seeds": runs, "failed": failed}
        arms.append(row | ({"tuned": found.tuned[arm.name]} if arm.name in found.tuned else {}))
    return {
        "name": spec.name,
        "budget": spec.budget,
        "seeds": list(spec.replicates(spec.seeds)),
        "claims": list(spec.claims),
        "best_control": best_control(found),
        "bases": _bases(found),
        "arms": arms,
        "tuning": [
            {"arm": tried.arm, "values": dict(tried.values), "seed": seed, **_evaluated(run.within(spec.budget)[-1])}
            for tried in found.tuning
            for seed, run in tried.runs.items()
        ],
        "notes": list(found.notes),
        "comparisons": [asdict(row) for row in comparisons(found)],
    }


def _bases(found: Found) -> list[dict[str, Any]]:
    """The base models: the mean over the seeds of what the first arm that begins with one evaluates, which may be other draws."""
    drawn: dict[str, dict[Replicate, Point]] = {}
    for (_, replicate), run in found.runs.items():
        point, (base, _) = run.points[0], found.study.study.parts_of(replicate)
        if point.step == 0:
            drawn.setdefault(base, {}).setdefault(replicate, point)
    return [
        {"name": f"base model {base}".strip(), **_mean([_evaluated(point) for point in points.values()])}
        for base, points in drawn.items()
    ]


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of evaluations by equally many samples."""
    first = rows[0]
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("final", "pass")}
    chances = {k: float(np.mean([row["pass_at"][k] for row in rows])) for k in first["pass_at"]}
    return {**first, **means, "pass_at": chances}


def _figures(run: ArmRun, study: Study) -> dict[str, Any]:
    budget, points = study.study.budget, run.within(study.study.budget)
    last, fewest = points[-1], min(point.samples.count for point in points)
    lost, solved = run.lost(budget, study.study.evaluations or PARTS)
    return {
        "compute": min(run.compute, budget),  # when it was stopped beyond that is up to the clock
        "uncharged": run.uncharged,
        "reached": last.compute / budget,
        "short": run.compute < SHORT * budget,
        "area": float(run.area(budget).mean()),
        **_evaluated(last),
        "distinct": float(last.samples.distinct.mean()),
        "lost": lost,
        "lost_share": lost / solved if solved else 0.0,
        "curve": [
            [one.compute, one.step, one.seconds, float(one.samples.accuracy.mean()), float(pass_at(one, fewest).mean())]
            for one in points
        ],
    }


def _evaluated(point: Point) -> dict[str, Any]:
    return {
        "final": float(point.samples.accuracy.mean()),
        "samples": point.samples.count,
        "pass": float(point.samples.best.mean()),
        "pass_at": {str(k): float(pass_at(point, k).mean()) for k in ks_for(point.samples.count)},
    }


def pass_at(point: Point, k: int) -> Float64Array:
    """``[Q]``: share of draws of k of the samples that have a correct one."""
    right = np.rint(point.samples.accuracy * point.samples.count).astype(np.int64)
    return pass_at_k(right, point.samples.count, k)


def write_report(found: Found) -> Path:
    """Write ``study.json`` and ``study.html`` into the study's directory; returns the page's path."""
    directory = found.study.study.directory
    directory.mkdir(parents=True, exist_ok=True)
    whole = json.loads(json.dumps(summary(found)))  # as it is read again
    write_whole(directory / "study.json", json.dumps(whole, indent=1) + "\n")
    write_whole(directory / "study.html", study_file(whole, found.study.model_dump(mode="json")))
    return directory / "study.html"
