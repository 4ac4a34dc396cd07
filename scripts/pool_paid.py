"""Print after how many runs a pool that was there has paid, from the figures of a study.

python scripts/pool_paid.py studies/results/countdown-4-pool.json "no replay"

An arm has what the control ends with where its mean accuracy over the seeds is at least that at two evaluations in a row, of
those at the control's points of compute: a phase of SFT has more. What it saves is the rest of the budget; a pool has paid when
the runs that use it saved what it took.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def saved(arm: dict[str, Any], least: float, grid: list[float]) -> float:
    """Compute left of the grid at the first of two points in a row with a mean accuracy of at least ``least``; else 0."""
    curves = [{point[0]: point[3] for point in row["curve"]} for row in arm["seeds"].values()]
    accuracy = np.mean([[curve[at] for at in grid] for curve in curves], axis=0)
    reached = accuracy >= least
    both = np.flatnonzero(reached[:-1] & reached[1:])
    return grid[-1] - grid[both[0]] if len(both) else 0.0


def main(path: str, control: str) -> None:
    """Print a line for each arm."""
    study = json.loads(Path(path).read_text())
    arms = {arm["name"]: arm for arm in study["arms"]}
    final = float(np.mean([row["final"] for row in arms[control]["seeds"].values()]))
    grid = [float(point[0]) for point in next(iter(arms[control]["seeds"].values()))["curve"]]
    lines = [f"{control} ends with {100 * final:.2f} %"]
    for name, arm in arms.items():
        before = float(np.mean([row["uncharged"] for row in arm["seeds"].values()]))
        left = saved(arm, final, grid)
        paid = f", paid after {before / left:.1f} runs" if before and left else ""
        lines.append(f"{name}: saves {left:.3g} of {study['budget']:.3g}; {before:.3g} before it{paid}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
