"""``scripts/gpu_day.sh`` on CPUs with the toy model: its stages in order, its stop at the first that fails, its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.small import BASE, small_task

ROOT = Path(__file__).parents[2]


def day(home: Path, *words: str | Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run the script; what it printed, and the stages of gpu_day.json."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["scripts/gpu_day.sh", *words],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    written = home / "gpu_day.json"
    return done, json.loads(written.read_text())["stages"] if written.exists() else []


def test_runs_follow_each_other_and_leave_their_figures(tmp_path: Path) -> None:
    home, config = tmp_path / "day", tmp_path / "small.toml"
    config.write_text("\n".join([*small_task(tmp_path), "cluster.cpus=4"]))
    done, stages = day(home, "--only", "resume,lora", home, BASE, config)
    assert done.returncode == 0, done.stderr
    assert [(line["stage"], line["status"], line["steps"]) for line in stages] == [("resume", 0, 2), ("lora", 0, 2)]
    for line in stages:
        # The toy's float32 on both sides: log-probs agree to a thousandth of a nat.
        assert 0 < line["logprob_mean"] < line["logprob_largest"] < 1e-3
        assert line["time/generate"] > 0
        assert line["peak_allocated"] > 100 * 2**20  # resident memory of a process with torch
    manifest = json.loads((home / "resume" / "config.json").read_text())
    assert manifest["learner"]["ranks"] == 1  # begun on two
    assert "| resume | ok |" in done.stdout
    assert "| generate |" in done.stdout


def test_the_first_stage_that_fails_ends_the_day(tmp_path: Path) -> None:
    home, absent = tmp_path / "day", tmp_path / "absent.toml"
    done, stages = day(home, "--only", "small,check", home, absent)
    assert done.returncode == 1
    assert [(line["stage"], line["status"]) for line in stages] == [("check", 2)]
    assert str(absent) in done.stderr
    assert "gpu_day: check failed (status 2" in done.stderr
    done, stages = day(home, "--only", "small,check", "--keep-going", home, absent)
    assert [line["stage"] for line in stages] == ["check", "small"]


def test_words_that_mean_nothing_start_nothing(tmp_path: Path) -> None:
    for words, said in (
        (["--only", "chek", tmp_path / "day", BASE], "there is no stage chek"),
        (["--quick", tmp_path / "day", BASE], "there is no option --quick"),
        ([tmp_path / "day"], "name a directory for the results and a configuration"),
    ):
        done, _ = day(tmp_path / "day", *words)
        assert (done.returncode, said in done.stderr, (tmp_path / "day").exists()) == (2, True, False)
