"""``study.json`` and the pages of a study, from the files of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from rlep.algorithms.evaluation import ks_for, pass_at_k
from rlep.core.files import replace_with
from rlep.core.types import Float64Array
from rlep.study.study_plan import Study
from rlep.study.study_results import SHORT, ArmRun, Point
from rlep.study.study_runner import Failed, Pipeline
from rlep.study.study_statistics import Paired, holm, paired
from rlep.view.study_pages import study_file

if TYPE_CHECKING:
    pass

Endpoint = Literal["area", "final", "pass"]


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a study as far as they are there."""

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
    """Return the content of ``study.json``."""
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
    """Write ``study.json`` and ``study.html`` into the study's directory; returns the page's path."""
    directory = found.study.study.directory
    directory.mkdir(parents=True, exist_ok=True)
    whole = json.loads(json.dumps(summary(found)))  # as it is read again
    _write(directory / "study.json", json.dumps(whole, indent=1).encode() + b"\n")
    _write(directory / "study.html", study_file(whole, found.study.model_dump(mode="json")).encode())
    return directory / "study.html"


def _write(path: Path, content: bytes) -> None:
    with replace_with(path) as part:
        part.write_bytes(content)
