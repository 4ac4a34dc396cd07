"""The page of a study, from the ``study.json`` that ``rlep study`` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlep.console.curves import Curve, picture
from rlep.console.run_files import RunPlace, number_of, read_json
from rlep.console.templates_of import rendered

GRID = 200
"""Points of an arm's curve, from 0 to the budget."""


def study(place: RunPlace) -> str:
    """Arms with their means over seeds, curves over compute, differences, and what has no result."""
    whole, notes = read_json(place, "study.json")
    budget = number_of(whole.get("budget")) or 0.0
    arms = [
        (str(arm.get("name")), bool(arm.get("control")), _mapping(arm.get("seeds")), arm)
        for arm in _rows(whole, "arms")
    ]
    curves = [
        Curve(name, tuple(_mean_curve([_mapping(run) for run in seeds.values()], budget))) for name, _, seeds, _ in arms
    ]
    return rendered(
        "study.html",
        title=place.name,
        budget=budget,
        notes=[*notes, *(["study.json is not there yet: rlep study report writes it"] if not whole else [])],
        arms=[_arm(name, control, [_mapping(run) for run in seeds.values()]) for name, control, seeds, _ in arms],
        picture=picture("Held-out accuracy over compute", curves),
        failed=[
            (name, seed, _mapping(why).get("phase"), _mapping(why).get("reason"))
            for name, _, _, arm in arms
            for seed, why in _mapping(arm.get("failed")).items()
        ],
        differences=[_difference(row) for row in _rows(whole, "comparisons")],
    )


def _arm(name: str, control: bool, runs: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    figures = {"area": "area", "final": "final", "best": "pass", "distinct": "distinct", "lost": "lost"}
    means: dict[str, object] = {}
    for shown, key in figures.items():
        values = [value for run in runs if (value := number_of(run.get(key))) is not None]
        means[shown] = sum(values) / len(values) if values else None
    return {"name": name, "control": control, "seeds": len(runs), **means}


def _difference(row: Mapping[str, Any]) -> dict[str, object]:
    texts = {key: row.get(key) for key in ("endpoint", "arm", "control")}
    paired = _mapping(row.get("paired"))
    return {
        **texts,
        **{key: number_of(paired.get(key)) for key in ("mean", "low", "high", "p")},
        "p_holm": row.get("p_holm"),
    }


def _mean_curve(runs: Sequence[Mapping[str, Any]], budget: float) -> Iterator[tuple[float, float]]:
    """Mean over seeds on a grid; each evaluation holds until the next one."""
    curves = [_points(run) for run in runs]
    if not curves or not all(curves) or budget <= 0:
        return
    for place in range(GRID + 1):
        x = budget * place / GRID
        held = [[y for at, y in curve if at <= x] or [curve[0][1]] for curve in curves]
        yield x, sum(ys[-1] for ys in held) / len(held)


def _points(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    found = []
    for point in run.get("curve") or ():
        numbers = [number_of(value) for value in point] if isinstance(point, list) and len(point) == 4 else [None]
        if numbers[0] is not None and numbers[-1] is not None:
            found.append((numbers[0], numbers[-1]))
    return found


def _rows(whole: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = whole.get(key)
    return [_mapping(row) for row in rows] if isinstance(rows, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
