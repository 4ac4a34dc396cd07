"""Draw docs/images/pass-at-k.png and coverage.png from the figures of two studies and of their base.

cd studies/results && uv run --with matplotlib ../../scripts/pass_at_k.py countdown-4-{tuned,pool,base}.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

IMAGES = Path(__file__).parents[1] / "docs" / "images"
KS = [1, 2, 4, 8, 16, 32, 64]
ARMS = {
    "no replay": ("no replay", "#6b7280", "-"),
    "dynamic sampling": ("dynamic sampling", "#b08900", "-"),
    "pass at k": ("pass@4 advantage", "#7b5ea7", "-"),
    "kl to the base": ("KL to the base", "#1f6fb2", "-"),
    "four live + kl to the base": ("four live and KL", "#1f6fb2", "--"),
    "four live": ("four live replays", "#c2410c", "-"),
}
"""Arm → label, colour and line."""
PLACES = {
    "no replay": (5.15, 15.0),
    "dynamic sampling": (3.6, 16.7),
    "pass at k": (5.02, 20.9),
    "kl to the base": (2.75, 25.2),
    "four live": (5.0, 28.0),
}
"""Where an arm's name is written in the second picture, in per cent."""
COVERAGE = {
    "no replay": ("no replay", "#6b7280"),
    "sixteen fresh responses": ("twice the fresh samples", "#1f6fb2"),
    "four live": ("replay of own successes", "#c2410c"),
}
"""Arm of the picture with four lines → label and colour."""


def draw(study: dict[str, Any], base: dict[str, Any]) -> None:
    """Draw pass@k over k, and pass@8 against pass@1."""
    found = {arm["name"]: [*arm["seeds"].values()] for arm in study["arms"]}
    curves = {name: np.array([[100 * row["pass_at"][str(k)] for k in KS] for row in found[name]]) for name in ARMS}
    start = {k: 100 * base["rows"][-1]["pass"][str(k)] for k in KS}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), dpi=150, width_ratios=[1.25, 1])
    left.plot(KS, [start[k] for k in KS], color="#111", ls=":", lw=1.4, label="base model")
    right.scatter([start[1]], [start[8]], marker="x", color="#111", s=36)
    right.annotate("base model", (start[1], start[8]), xytext=(6, -3), textcoords="offset points", fontsize=8.5)
    for name, (label, colour, line) in ARMS.items():
        of_seeds = curves[name]
        left.plot(KS, of_seeds.mean(0), color=colour, ls=line, lw=2.6 if name == "four live" else 1.5, label=label)
        if name in ("no replay", "kl to the base", "four live"):
            left.fill_between(KS, of_seeds.min(0), of_seeds.max(0), color=colour, alpha=0.13, lw=0)
        hollow = {"facecolors": "none", "edgecolors": colour} if line == "--" else {"color": colour, "lw": 0}
        right.scatter(of_seeds[:, KS.index(1)], of_seeds[:, KS.index(8)], s=22, alpha=0.85, **hollow)
    for name, (x, y) in PLACES.items():
        right.text(x, y, ARMS[name][0], color=ARMS[name][1], fontsize=8.5)
    left.set_xscale("log", base=2)
    left.set_xticks(KS, [str(k) for k in KS])
    left.set(xlabel="k: responses to a question", ylabel="pass@k, % of held-out questions", ylim=(0, 72))
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    right.set(xlabel="one response (pass@1), %", ylabel="any of eight (pass@8), %", xlim=(2.4, 6.3), ylim=(14, 29))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    figure.tight_layout()
    figure.savefig(IMAGES / "pass-at-k.png")


def draw_coverage(study: dict[str, Any], base: dict[str, Any]) -> None:
    """Draw pass@k over k of three arms and the base."""
    found = {arm["name"]: [*arm["seeds"].values()] for arm in study["arms"]}
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=150)
    start = [100 * base["rows"][-1]["pass"][str(k)] for k in KS]
    axes.plot(KS, start, color="#111", ls=":", lw=1.4, label="untrained")
    for name, (label, colour) in COVERAGE.items():
        curve = np.mean([[100 * row["pass_at"][str(k)] for k in KS] for row in found[name]], axis=0)
        axes.plot(KS, curve, color=colour, lw=2.0, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(KS, [str(k) for k in KS])
    axes.set(xlabel="k: tries at a question", ylabel="solved in k tries, %", ylim=(0, 70))
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    figure.tight_layout()
    figure.savefig(IMAGES / "coverage.png")


if __name__ == "__main__":
    tuned, pool, base = (json.loads(Path(name).read_text()) for name in sys.argv[1:4])
    draw(tuned, base)
    draw_coverage(pool, base)
