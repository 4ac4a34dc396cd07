"""A study of two arms, as the command that runs it leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.view.console_scene import ATTACK


def seed(area: float, curve: list[list[float]], *, short: bool = False) -> dict[str, Any]:
    base = {"compute": curve[-1][0], "reached": 0.5, "short": short, "area": area, "final": curve[-1][3]}
    return base | {"samples": 2, "pass": 0.5, "distinct": 1.25, "lost": 3, "curve": curve}


def whole() -> dict[str, Any]:
    """Two arms; of the second one seed failed."""
    control = {"1": seed(0.2, [[0, 0, 0, 0.1], [1e6, 4, 60, 0.3]]), "2": seed(0.4, [[0, 0, 0, 0.3], [1e6, 4, 60, 0.5]])}
    paired = {"by_seed": [0.1], "mean": 0.1, "low": 0.05, "high": 0.15, "p": 1.0}
    compared = {"arm": "rlep", "control": "none", "endpoint": "area", "seeds": [1], "paired": paired, "p_holm": None}
    return {
        "name": ATTACK,
        "budget": 2e6,
        "seeds": [1, 2],
        "best_control": "none",
        "arms": [
            {"name": "none", "control": True, "seeds": control, "failed": {}},
            {
                "name": "rlep",
                "control": False,
                "seeds": {"1": seed(0.3, [[0, 0, 0, 0.1, 0.2], [2e6, 8, 120, 0.7, 0.8]], short=True)},
                "failed": {"2": {"phase": "collect", "reason": ATTACK}},
            },
        ],
        "notes": [ATTACK],
        "comparisons": [compared],
    }


PLAN = {
    "study": {"name": "small", "budget": 2e6, "seeds": [1, 2]},
    "arm": [
        {"name": "none", "control": True, "phase": [{"command": "train", "set": {"replay.count": 0}}]},
        {"name": "rlep", "control": False, "phase": [{"command": "collect", "set": {}}, {"command": "sft", "set": {}}]},
    ],
}


def write_study(study: Path) -> None:
    """Its plan, its results and one run of a phase; what others could have written is ``ATTACK``."""
    run = study / "phases" / "train-0-1"
    run.mkdir(parents=True)
    (run / "events.jsonl").write_text('{"event": "run_finished"}\n')
    (study / "plan.json").write_text(json.dumps(PLAN))
    (study / "study.json").write_text(json.dumps(whole()))
