"""The samples of an evaluation, question by question: ``samples/step-NNNNNN.parquet`` of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rlep.core.types import Float64Array, Int64Array
from rlep.view.rollouts import read_rows
from rlep.view.run_files import RunPlace

MOST_SAMPLES = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Figures of an evaluation's samples; arrays are ``[Q]``, in the order of the questions' ids."""

    questions: tuple[str, ...]
    accuracy: Float64Array
    """Share of correct samples."""
    best: Float64Array
    """1 where any sample is correct: pass@n."""
    distinct: Float64Array
    """Different correct answers."""
    count: int
    """n: samples of each question."""
    first: Int64Array
    """Samples before the first correct one; n or more where none is."""


def read_samples(run: RunPlace, step: int, source: str | None = None) -> Samples:
    """Read an evaluation's samples, of one data source or of all. Raises ``DataError``."""
    only = None if source is None else ("data_source", source)
    parts = ("samples", f"step-{step:06d}.parquet")
    counts: Counter[str] = Counter()
    right: dict[str, list[str | None]] = {}
    first: dict[str, int] = {}
    for row in read_rows(run, parts, ("prompt_id", "status", "extracted"), only, MOST_SAMPLES):
        if row["status"] == "correct":
            first.setdefault(row["prompt_id"], counts[row["prompt_id"]])
        counts[row["prompt_id"]] += 1
        right.setdefault(row["prompt_id"], []).extend([row["extracted"]] if row["status"] == "correct" else [])
    asked = sorted(counts)
    return Samples(
        tuple(asked),
        np.array([len(right[name]) / counts[name] for name in asked]),
        np.array([float(bool(right[name])) for name in asked]),
        np.array([float(len(set(right[name]))) for name in asked]),
        max(counts.values(), default=0),
        np.array([first.get(name, MOST_SAMPLES) for name in asked], dtype=np.int64),
    )
