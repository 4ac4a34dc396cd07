"""Runs beside each other: curves over steps, time or compute, and the settings that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlep.view.charts import Axis, ChartLook, Curve, line_chart
from rlep.view.record import COMPUTE, MOST_SOURCES, by_source, compute_of_line, read_evaluations
from rlep.view.run_charts import AXES, axis_of, evaluation_curve
from rlep.view.run_files import RunPlace, read_json
from rlep.view.run_page import SECTIONS
from rlep.view.state import flat
from rlep.view.steps import StepTable, read_steps
from rlep.view.templating import rendered
from rlep.view.words import label_of


def compare(
    chosen: Sequence[RunPlace], names: Sequence[str], over: str, metrics: Sequence[str], look: ChartLook
) -> str:
    """Runs over common axes, evaluations first, and the keys of their configs that differ."""
    over = over if over in AXES else "steps"
    tables = {place.name: read_steps(place)[0] for place in chosen}
    evaluated = {place.name: by_source(read_evaluations(place)[0]) for place in chosen}
    sources = sorted({source for rows in evaluated.values() for source in rows})[:MOST_SOURCES]
    x = Axis(AXES[over])
    drawn = [
        line_chart(
            f"{source}: held-out accuracy",
            [evaluation_curve(name, rows.get(source, ()), tables[name], over) for name, rows in evaluated.items()],
            x,
            Axis("correct samples, mean over questions", "share"),
            look=look,
        )
        for source in sources
    ]
    known = sorted({name for table in tables.values() for name in [*table.columns] if "[" not in name})
    usual = [name for charts in SECTIONS.values() for _, several in charts for name in several]
    for metric in dict.fromkeys([*(name for name in metrics if name in known), *usual, "time/step"]):
        curves = [Curve(name, points(table, metric, over)) for name, table in tables.items()]
        drawn.append(line_chart(label_of(metric), curves, x, axis_of(metric), look=look))
    configs = [flat(read_json(place, "config.json")[0]) for place in chosen]
    keys = sorted({key for config in configs for key in config})
    return rendered(
        "compare.html",
        chosen=[place.name for place in chosen],
        names=names,
        over=over,
        axes=AXES,
        look=look,
        metrics=[name for name in metrics if name in known],
        known=known,
        pictures=[chart for chart in drawn if chart],
        differences=[
            (key, [config.get(key) for config in configs])
            for key in keys
            if len({config.get(key) for config in configs}) > 1
        ],
    )


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
    if not all(name in table.columns for name in COMPUTE):
        return [math.nan] * len(table)
    columns = zip(*(table.columns[name] for name in COMPUTE), strict=False)
    return [(compute_of_line(dict(zip(COMPUTE, several, strict=True))) or 0.0) / 1e6 for several in columns]
