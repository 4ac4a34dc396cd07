"""The samples of an evaluation, question by question: ``samples/step-NNNNNN.parquet`` of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlep.core.errors import DataError
from rlep.core.parquet_pages import check_pages
from rlep.core.types import Float64Array


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


def read_samples(path: Path, source: str | None = None) -> Samples:
    """Read an evaluation's samples, of one data source or of all. Raises ``DataError``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        only = None if source is None else [("data_source", "=", source)]
        names = ("prompt_id", "status", "extracted")
        check_pages(path, pq.read_metadata(path), columns=[*names, *([] if source is None else ["data_source"])])
        table = pq.read_table(path, columns=list(names), filters=only).select(names)
        table = table.cast(pa.schema([(name, pa.string()) for name in names]))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if table["prompt_id"].null_count:
        raise DataError(f"{path} has samples without prompt_id")
    counts: Counter[str] = Counter()
    right: dict[str, list[str | None]] = {}
    for prompt_id, status, extracted in zip(*(column.to_pylist() for column in table.columns), strict=True):
        counts[prompt_id] += 1
        right.setdefault(prompt_id, []).extend([extracted] if status == "correct" else [])
    asked = sorted(counts)
    return Samples(
        tuple(asked),
        np.array([len(right[name]) / counts[name] for name in asked]),
        np.array([float(bool(right[name])) for name in asked]),
        np.array([float(len(set(right[name]))) for name in asked]),
        max(counts.values(), default=0),
    )
