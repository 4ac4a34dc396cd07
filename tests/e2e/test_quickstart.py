"""``rlep quickstart`` as a new user runs it, with one step instead of 96 and fewer samples of each question."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from rlep.core.jsonl import read_lines

CONFIGS = Path(__file__).parents[2] / "rlep" / "quickstart"
QUESTIONS, CANDIDATES = 512, 16
FEWER = {"collect.toml": ("samples = 64", f"samples = {CANDIDATES}"), "base.toml": ("final_samples = 16", "")}
"""File -> what it says, and what it says here."""
PROGRAM = """
import importlib, pathlib, sys
from rlep.cli import main
importlib.import_module("rlep.cli.quickstart").CONFIGS = pathlib.Path(sys.argv.pop(1))
main()
"""


def fewer_samples(directory: Path) -> Path:
    """The quickstart's configs, asking for less."""
    directory.mkdir()
    for file in CONFIGS.glob("*.toml"):
        shutil.copy(file, directory)
    for name, (usual, here) in FEWER.items():
        text = (directory / name).read_text()
        assert usual in text
        (directory / name).write_text(text.replace(usual, here))
    return directory


def test_the_quickstart_runs_every_stage_and_ends_with_the_comparison(tmp_path: Path) -> None:
    configs, home = fewer_samples(tmp_path / "configs"), tmp_path / "quickstart"
    command = [sys.executable, "-c", PROGRAM, configs, "quickstart", "--directory", home, "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in ("phase 1: train without replay", "collect: its verified", "phase 2: from the base again"):
        assert stage in done.stdout
    assert str(home / "report" / "report.html") in done.stdout.replace("\n", "")
    assert (home / "report" / "report.png").exists()

    base = {name: read_lines(home / name / "evaluations.jsonl")[0] for name in ("baseline", "rlep")}
    assert base["baseline"]["avg"] == base["rlep"]["avg"]  # the same base, questions and seeds
    assert 0.08 <= base["baseline"]["avg"] <= 0.20

    answered = read_lines(home / "collect" / "collection.jsonl")
    assert len(answered) == QUESTIONS
    assert {line["candidates"] for line in answered} == {CANDIDATES}
    assert np.mean([line["admitted"] > 0 for line in answered]) >= 0.25  # of 64, after 96 steps: about 0.96

    (step,) = read_lines(home / "rlep" / "metrics.jsonl")
    assert step["metrics"]["rollout/samples"] == 32 * 8
    assert step["metrics"]["loss/trajectories/replay"] == step["metrics"]["replay/trajectories"] > 0
    assert step["metrics"]["weights/logprob_gap"] <= 1e-4
