"""Replay against the baseline and the controls on the quickstart's task, over paired seeds.

    python benchmarks/quickstart.py [--seeds 3] [--control-seeds 1] [--directory runs/bench-quickstart] [--json FILE]

Arms of one seed share base model, problems, prompt order and the evaluation's seeds:

    baseline    M = 0                             rlep        M = 2, from the base, pool of the baseline's policy
    fresh10     M = 0, G + M = 10 fresh           continued   the baseline for as many steps again
    sft         supervised fine-tuning on the same pool, as many steps

Finished arms are taken as they are, interrupted ones continued. The gate is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlep.quickstart.task import TaskFiles, build_task
from rlep.view.report import build_report

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "rlep" / "quickstart"
COMPARED = ("baseline", "rlep")
ARMS = (*COMPARED, "fresh10", "continued", "sft")


def main() -> None:
    """Run what is missing, print the table, write the JSON; exit status 1 when the gate is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--control-seeds", type=int, default=1, help="seeds of the controls (default 1)")
    parser.add_argument("--directory", type=Path, default=Path("runs/bench-quickstart"))
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "quickstart.json")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    options = parser.parse_args()
    task = build_task(options.directory / "task")
    seeds = {arm: range(options.seeds if arm in COMPARED else options.control_seeds) for arm in options.arms}
    for arm in options.arms:
        for seed in seeds[arm]:
            run_arm(options.directory, task, arm, seed)
    results = {arm: [curve(options.directory / f"{arm}-{seed}") for seed in seeds[arm]] for arm in options.arms}
    found = figures(results) | {"machine": machine()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n")
    show(found)
    first = [options.directory / f"{arm}-0" for arm in options.arms]
    report = build_report([*first, *options.directory.glob("collect-0")], options.directory / "report")
    print(f"report of seed 0 with its controls: {report.html}")
    sys.exit(0 if found["gate"]["passed"] else 1)


def run_arm(home: Path, task: TaskFiles, arm: str, seed: int) -> None:
    """Make one run unless it is there."""
    directory = home / f"{arm}-{seed}"
    if finished(directory):
        return
    here = [f"run.seed={seed}", f'run.directory="{directory}"', f"run.name={arm}-{seed}", *paths(home, task, seed)]
    if arm == "baseline":
        rlep("train", "phase1", here)
    elif arm == "rlep":
        collect(home, task, seed)
        rlep("train", "phase2", here)
    elif arm == "fresh10":
        rlep("train", "phase1", [*here, "rollout.fresh=10"])
    elif arm == "continued":
        if not directory.exists():
            shutil.copytree(home / f"baseline-{seed}", directory)
        rlep("train", "phase1", [*here, "run.steps=192"])
    else:
        collect(home, task, seed)
        rlep("sft", "phase2", here)


def collect(home: Path, task: TaskFiles, seed: int) -> None:
    """Fill the seed's pool from its baseline."""
    directory = home / f"collect-{seed}"
    if (directory / "collection.json").exists():
        return
    (model,) = (home / f"baseline-{seed}" / "checkpoints").glob("step-000096/model")
    here = [f"run.seed={seed}", f'run.directory="{directory}"', f"run.name=collect-{seed}", *paths(home, task, seed)]
    rlep("collect", "collect", [*here, f'model.path="{model}"'])


def paths(home: Path, task: TaskFiles, seed: int) -> list[str]:
    """Where data and pool of a seed lie."""
    return [
        f'model.path="{task.model_dir}"',
        f'data.train="{task.train}"',
        f'data.evaluation=["{task.heldout}"]',
        f'pool.directory="{home / f"pool-{seed}"}"',
    ]


def rlep(command: str, config: str, overrides: Sequence[str]) -> None:
    """One command of the command line."""
    given = [part for text in overrides for part in ("--set", text)]
    files = [CONFIGS / "base.toml", CONFIGS / f"{config}.toml"]
    print(f"== rlep {command} {config} {' '.join(overrides)}", flush=True)
    subprocess.run([sys.executable, "-m", "rlep", command, *map(str, files), *given], check=True)


def finished(directory: Path) -> bool:
    """Whether a run's last event says that it is done (a continued copy also holds its source's)."""
    events = directory / "events.jsonl"
    wanted = 192 if directory.name.startswith("continued") else 96
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return any(line["event"] == "run_finished" and line["step"] == wanted for line in lines)


def curve(directory: Path) -> dict[str, Any]:
    """Held-out accuracy by step with 4 samples, the last evaluation with 16, and the median time of a step."""
    rows = [json.loads(line) for line in (directory / "evaluations.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    last = max(row["step"] for row in rows)
    return {
        "accuracy": {str(row["step"]): row["avg"] for row in rows},
        "final": next(row["avg"] for row in rows if row["step"] == last),
        "seconds_per_step": statistics.median(line["metrics"]["time/step"] for line in lines),
    }


def mean_at(curves: Sequence[dict[str, Any]], steps: Sequence[int]) -> float:
    """Mean accuracy over seeds and steps."""
    return statistics.fmean(run["accuracy"][str(step)] for run in curves for step in steps)


def area(run: dict[str, Any], last: int = 96) -> float:
    """Mean height of the curve over steps 0 … ``last`` (trapezoids)."""
    points = sorted((int(step), value) for step, value in run["accuracy"].items() if int(step) <= last)
    pieces = [(b - a) * (u + v) / 2 for (a, u), (b, v) in pairwise(points)]
    return sum(pieces) / (points[-1][0] - points[0][0])


def figures(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds, paired differences, and the gate."""
    steps = sorted({int(step) for runs in results.values() for run in runs for step in run["accuracy"]})
    found: dict[str, Any] = {
        "seeds": len(results["baseline"]),
        "arms": {
            arm: {
                "accuracy": {str(s): mean_at(runs, [s]) for s in steps if all(str(s) in r["accuracy"] for r in runs)},
                "area_96": [area(run) for run in runs],
                "final": [run["final"] for run in runs],
                "seconds_per_step": [run["seconds_per_step"] for run in runs],
            }
            for arm, runs in results.items()
        },
    }
    base = results["baseline"]
    if "rlep" in results:
        replay = results["rlep"]
        gains = [area(r) - area(b) for r, b in zip(replay, base, strict=True)]
        finals = [r["final"] - b["final"] for r, b in zip(replay, base, strict=True)]
        early, late = mean_at(replay, (64, 72, 80)), mean_at(base, (80, 88, 96))
        found["gate"] = {
            "area_gain_points": [100 * gain for gain in gains],
            "area_gain_mean": 100 * statistics.fmean(gains),
            "final_gain_points": [100 * gain for gain in finals],
            "final_gain_mean": 100 * statistics.fmean(finals),
            "rlep_at_64_72_80": early,
            "baseline_at_80_88_96": late,
            "passed": statistics.fmean(gains) >= 0.03 and statistics.fmean(finals) >= 0 and early >= late,
        }
    return found


def machine() -> dict[str, Any]:
    """What it ran on."""
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "git": revision.strip(),
    }


def show(found: dict[str, Any]) -> None:
    """The table for people."""
    print(f"\nheld-out accuracy, mean over {found['seeds']} seeds")
    for arm, row in found["arms"].items():
        points = "  ".join(
            f"{step}:{100 * value:.1f}" for step, value in row["accuracy"].items() if int(step) % 16 == 0
        )
        final, seconds = statistics.fmean(row["final"]), statistics.fmean(row["seconds_per_step"])
        area_96 = statistics.fmean(row["area_96"])
        print(
            f"{arm:10} ({len(row['final'])}) {points}  area {100 * area_96:.1f}  final@16 {100 * final:.1f}  {seconds:.2f} s/step"
        )
    if "gate" in found:
        gate = found["gate"]
        print(
            f"area gain {gate['area_gain_mean']:+.1f} points (wanted +3.0), final {gate['final_gain_mean']:+.1f} (wanted 0)"
        )
        print(
            f"RLEP at 64/72/80 {gate['rlep_at_64_72_80']:.3f}, baseline at 80/88/96 {gate['baseline_at_80_88_96']:.3f}"
        )
        print("gate passed" if gate["passed"] else "gate NOT passed")


if __name__ == "__main__":
    main()
