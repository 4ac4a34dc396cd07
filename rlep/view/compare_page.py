"""Runs beside each other: curves over steps, time or compute, and the settings that differ."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlep.view.charts import Curve, picture
from rlep.view.record import compute_of_line
from rlep.view.run_files import LONGEST_LINE, RunPlace, number_of, read_json, read_tail
from rlep.view.state import flat
from rlep.view.steps import StepTable, read_steps
from rlep.view.templating import rendered

CURVES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Accuracy and reward", ("rollout/accuracy", "selection/accuracy", "rollout/reward", "replay/reward")),
    ("Groups with a signal", ("group/informative", "group/solved_by_replay")),
    ("Tokens in the loss", ("loss/tokens/fresh", "loss/tokens/replay")),
    ("Length in tokens", ("rollout/length_mean", "replay/length_mean")),
    ("Entropy", ("update/entropy/fresh", "update/entropy/replay")),
    ("Ratio, mean", ("ratio/mean/fresh", "ratio/mean/replay")),
    ("Gradient norm", ("update/grad_norm",)),
    ("Seconds a step", ("time/step", "time/generate", "time/update")),
)
AXES: Mapping[str, str] = {
    "steps": "steps",
    "time": "minutes of work",
    "compute": "million tokens: generated + scored + 3 × trained",
}
_COMPUTE = ("compute/generated_tokens", "compute/scored_tokens", "compute/trained_tokens")


def compare(chosen: Sequence[RunPlace], names: Sequence[str], over: str) -> str:
    """Runs over common axes, evaluations first, and the keys of their configs that differ."""
    over = over if over in AXES else "steps"
    tables = {place.name: read_steps(place)[0] for place in chosen}
    evaluated = {place.name: read_tail(place, "evaluations.jsonl", LONGEST_LINE).lines for place in chosen}
    sources = sorted({source_of(line) for lines in evaluated.values() for line in lines})
    drawn = [
        picture(
            f"{source}: avg",
            [Curve(name, evaluation_points(lines, source, tables[name], over)) for name, lines in evaluated.items()],
        )
        for source in sources
    ]
    drawn += [
        picture(metric, [Curve(name, points(table, metric, over)) for name, table in tables.items()])
        for metric in (name for _, several in CURVES for name in several)
    ]
    configs = [flat(read_json(place, "config.json")[0]) for place in chosen]
    keys = sorted({key for one in configs for key in one})
    return rendered(
        "compare.html",
        chosen=[place.name for place in chosen],
        names=names,
        over=over,
        axes=AXES,
        pictures=[one for one in drawn if one],
        differences=[
            (key, [one.get(key) for one in configs]) for key in keys if len({one.get(key) for one in configs}) > 1
        ],
    )


def source_of(line: Mapping[str, Any]) -> str:
    """The data source of a line of ``evaluations.jsonl``."""
    return str(line.get("data_source"))


def evaluation_points(
    lines: Sequence[Mapping[str, Any]], source: str, table: StepTable, over: str
) -> tuple[tuple[float, float], ...]:
    """(position, avg) of every evaluation of a data source whose position the run recorded."""

    def found() -> Iterator[tuple[float, float]]:
        places = positions(table, over)
        for line in lines:
            step, avg = line.get("step"), number_of(line.get("avg"))
            if type(step) is not int or avg is None or source_of(line) != source:
                continue
            if over == "steps":
                at: float | None = number_of(step)
            elif over == "time":
                at = None if (seconds := number_of(line.get("wall_s"))) is None else seconds / 60
            elif step == 0:
                at = 0.0
            else:
                before = bisect_left(table.steps, step - 1)
                at = places[before] if before < len(table) and table.steps[before] == step - 1 else None
            if at is not None and not math.isnan(at):
                yield at, avg

    return tuple(sorted(found()))


def points(table: StepTable, metric: str, over: str) -> tuple[tuple[float, float], ...]:
    """(position, value) of the steps that have one."""
    pairs = zip(positions(table, over), table.columns.get(metric, ()), strict=False)
    return tuple((at, value) for at, value in pairs if not math.isnan(at) and not math.isnan(value))


def positions(table: StepTable, over: str) -> Sequence[float]:
    """Where each step stands on an axis; NaN where the run did not record it."""
    if over == "steps":
        return table.steps
    if over == "time":
        return [seconds / 60 for seconds in table.wall_s]
    if not all(name in table.columns for name in _COMPUTE):
        return [math.nan] * len(table)
    columns = zip(*(table.columns[name] for name in _COMPUTE), strict=False)
    return [compute_of_line(dict(zip(_COMPUTE, several, strict=True))) / 1e6 for several in columns]
