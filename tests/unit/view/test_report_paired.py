"""Two runs over the same questions are compared question by question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.algorithms.evaluation import RESAMPLES, paired
from rlep.core.seeds import generator_for
from rlep.view.report import build_report
from tests.unit.view.report_values import summary, write_run

N = 10
Counts = Sequence[int]
"""Correct ones of ``N`` samples, a question each."""


def sampled(directory: Path, curve: Mapping[int, Counts], replays: int = 0, *, first: int = 0) -> Path:
    """A run with the samples of its evaluations; its questions are numbered from ``first``."""
    means = [(step, sum(counts) / (N * len(counts))) for step, counts in curve.items()]
    run = write_run(directory, means, replays=replays, width=0.1)
    for step, counts in curve.items():
        rows = [
            (f"q{first + number}", "held-out", "correct" if sample < correct else "wrong", "7")
            for number, correct in enumerate(counts)
            for sample in range(N)
        ]
        columns = dict(zip(("prompt_id", "data_source", "status", "extracted"), zip(*rows, strict=True), strict=True))
        (run / "samples").mkdir(exist_ok=True)
        pq.write_table(
            pa.table({name: list(of) for name, of in columns.items()}), run / "samples" / f"step-{step:06d}.parquet"
        )
    return run


def test_a_difference_that_every_question_has_is_certain_where_the_intervals_overlap(tmp_path: Path) -> None:
    easy_to_hard = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]  # 45 %
    base = sampled(tmp_path / "base", {0: easy_to_hard, 20: easy_to_hard})
    replay = sampled(tmp_path / "replay", {0: easy_to_hard, 20: [one + 1 for one in easy_to_hard]}, 2)  # 55 %
    found = summary([base, replay])
    assert found.crossing is not None
    assert found.crossing.rlep is not None
    assert (found.crossing.rlep.step, found.crossing.baseline_step) == (0, 0)
    assert found.difference is not None
    # the mean over steps 0 and 20 by a trapezoid: half of a tenth for each question, so that no resample differs
    assert (found.difference.value, found.difference.low, found.difference.high) == pytest.approx((0.05, 0.05, 0.05))
    assert found.headline().endswith(
        "Averaged over the steps, RLEP is 5.0 points above the baseline: RLEP has 50.0% [40.0, 60.0], the baseline 45.0% "
        "[35.0, 55.0]; question by question +5.0 points [+5.0, +5.0]. "
        "One seed of each: the intervals cover the questions, not another run's seed."
    )


def test_the_step_of_the_crossing_is_claimed_by_its_paired_difference(tmp_path: Path) -> None:
    base = sampled(tmp_path / "base", {0: [0] * 10, 10: [4] * 10, 20: [5] * 10})
    ahead = sampled(tmp_path / "ahead", {0: [0] * 10, 10: [5] * 10, 20: [5] * 10}, 2)
    text = summary([base, ahead]).headline()
    assert "RLEP reaches that at step 10 (50% of the steps): 50.0% [40.0, 60.0] there, the baseline 40.0%" in text
    assert "question by question +10.0 points [+10.0, +10.0]. Averaged" in text
    mixed = sampled(tmp_path / "mixed", {0: [0] * 10, 10: [9, 1] * 5, 20: [5] * 10}, 2)
    text = summary([base, mixed]).headline()
    assert "Whether RLEP reaches that sooner is not certain: at step 10 it has 50.0%" in text
    assert "overlap" not in text
    html = build_report([base, ahead], tmp_path / "out").html.read_text()
    assert "question by question +10.0 points" in html


@pytest.mark.parametrize("fault", ["other questions", "missing", "torn", "of another evaluation", "no ids"])
def test_samples_that_do_not_match_are_not_compared_in_pairs(tmp_path: Path, fault: str) -> None:
    base = sampled(tmp_path / "base", {0: [0] * 4, 20: [4] * 4})
    replay = sampled(tmp_path / "replay", {0: [0] * 4, 20: [5] * 4}, 2, first=1 if fault == "other questions" else 0)
    file = replay / "samples" / "step-000020.parquet"
    if fault == "missing":
        file.unlink()
    elif fault == "torn":
        file.write_bytes(file.read_bytes()[:-9])
    elif fault == "of another evaluation":
        (base / "samples" / "step-000020.parquet").replace(file)
    elif fault == "no ids":
        table = pq.read_table(file)
        pq.write_table(table.set_column(0, "prompt_id", pa.nulls(len(table))), file)
    found = summary([base, replay])
    assert found.means is not None
    assert found.difference is None
    assert "their questions cannot be compared in pairs" in found.headline()


def test_only_questions_of_the_headline_s_data_source_are_compared(tmp_path: Path) -> None:
    base = sampled(tmp_path / "base", {0: [0] * 4, 20: [4] * 4})
    replay = sampled(tmp_path / "replay", {0: [0] * 4, 20: [6] * 4}, 2)
    for run in (base, replay):
        for file in (run / "samples").iterdir():
            table = pq.read_table(file)
            other = {"prompt_id": ["z"], "data_source": ["other"], "status": ["correct"], "extracted": [None]}
            pq.write_table(pa.concat_tables([table, pa.table(other, schema=table.schema)]), file)
    difference = summary([base, replay]).difference
    assert difference is not None
    assert difference.value == pytest.approx(0.1)


def test_the_paired_interval_is_the_bootstrap_of_the_differences() -> None:
    draw = np.random.default_rng(1)
    left, right = draw.random(50), draw.random(50)
    found = paired(left, right, address="report")
    again = generator_for(0, "evaluation", "bootstrap", "report")
    means = sorted(float((left - right)[again.integers(50, size=50)].mean()) for _ in range(RESAMPLES))
    assert found.value == pytest.approx(float((left - right).mean()))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
    with pytest.raises(ValueError, match="50 and 49 questions"):
        paired(left, right[1:], address="report")
