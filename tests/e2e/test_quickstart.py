"""``rlep quickstart`` as a newcomer runs it, with one step instead of 96."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlep.core.jsonl import read_lines
from tests.small import rlep


def test_the_quickstart_runs_every_stage_and_ends_with_the_comparison(tmp_path: Path) -> None:
    done = rlep("quickstart", "--directory", tmp_path, "--steps", "1")
    for stage in ("phase 1: train without replay", "collect: its verified", "phase 2: from the base again"):
        assert stage in done.stdout
    assert str(tmp_path / "report" / "report.html") in done.stdout.replace("\n", "")
    assert (tmp_path / "report" / "report.png").exists()

    base = {name: read_lines(tmp_path / name / "evaluations.jsonl")[0] for name in ("baseline", "rlep")}
    assert base["baseline"]["avg"] == base["rlep"]["avg"]  # the same base, questions and seeds
    assert 0.08 <= base["baseline"]["avg"] <= 0.20

    answered = read_lines(tmp_path / "collect" / "collection.jsonl")
    assert len(answered) == 512
    assert {line["candidates"] for line in answered} == {64}
    assert np.mean([line["admitted"] > 0 for line in answered]) >= 0.25  # after 96 steps: about 0.96

    (step,) = read_lines(tmp_path / "rlep" / "metrics.jsonl")
    assert step["metrics"]["rollout/samples"] == 32 * 8
    assert step["metrics"]["loss/trajectories/replay"] == step["metrics"]["replay/trajectories"] > 0
    assert step["metrics"]["weights/logprob_gap"] <= 1e-4
