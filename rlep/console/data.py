"""Runs, metrics and steps as JSON, for scripts and notebooks: numbers and texts as the files have them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlep.console import run_tables
from rlep.console.metric_columns import read_steps
from rlep.console.pages import A_PAGE
from rlep.console.run_files import RunPlace
from rlep.console.run_state import summary_of


def runs_data(places: Sequence[RunPlace]) -> str:
    """The list of runs."""
    return _text({"runs": [asdict(summary_of(place)) for place in places]})


def metrics_data(place: RunPlace, names: Sequence[str], after: int) -> str:
    """Columns of ``metrics.jsonl`` over the steps after ``after``; all columns without ``names``."""
    table, notes = read_steps(place)
    chosen = [at for at, step in enumerate(table.steps) if step > after]
    columns, none = dict(table.columns), [math.nan] * len(table)
    return _text(
        {
            "run": place.name,
            "steps": [table.steps[at] for at in chosen],
            "wall_s": [table.wall_s[at] for at in chosen],
            "metrics": {name: _column(columns.get(name, none), chosen) for name in names or sorted(columns)},
            "notes": notes,
        }
    )


def steps_data(place: RunPlace) -> str:
    """Which steps have rollout files, and evaluations samples; ascending."""
    written, sampled = (sorted(run_tables.steps_with(place, name)) for name in ("rollouts", "samples"))
    return _text({"run": place.name, "steps": written, "evaluations": sampled})


def step_data(place: RunPlace, number: int, page: int) -> str:
    """The trajectories of a step, without texts: ``A_PAGE`` groups a page. Raises ``DataError``."""
    groups = run_tables.read_groups(place, number)
    shown = groups[page * A_PAGE : (page + 1) * A_PAGE]
    return _text(
        {
            "run": place.name,
            "step": number,
            "groups": len(groups),
            "page": page,
            "pages": max(1, -(-len(groups) // A_PAGE)),
            "rows": [_finite(row) for group in shown for row in group.rows],
        }
    )


def error_data(code: int, reason: str) -> str:
    """Why there is no answer."""
    return _text({"code": code, "error": reason})


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with null where a number is NaN or infinite, which JSON has not."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _column(column: Sequence[float], chosen: Sequence[int]) -> list[float | None]:
    return [None if math.isnan(column[at]) else column[at] for at in chosen]


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False)
