"""The numbers behind the charts, by hand."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlep.metrics.catalogue import metric_for
from rlep.view import report
from rlep.view.charts import (
    STEP,
    Axis,
    ChartLook,
    Curve,
    Key,
    columns,
    line_chart,
    ramp,
    smoothed,
    stack_chart,
    thinned,
    ticks,
)
from rlep.view.record import PHASES, compute_at
from rlep.view.run_charts import lost_share, replay_share, seconds_chart, shares_chart
from rlep.view.steps import StepTable
from rlep.view.words import duration, label_of, number, short


def table_of(*steps: Mapping[str, object]) -> StepTable:
    table = StepTable()
    for at, metrics in enumerate(steps):
        table.append((at, 0.0, metrics))
    return table


def hovered(hover: str) -> dict[str, list[str]]:
    """Curve → the values that a crosshair says."""
    return {one["label"]: [point[3] for point in one["points"]] for one in json.loads(hover)}


def test_seconds_of_a_step_leave_the_rest_to_other() -> None:
    parts = {"time/step": 4.0, "time/generate": 2.0, "time/update": 1.5}
    late = {"time/step": 1.0, "time/generate": 1.5}  # clocks overlap a little: the rest is never negative
    drawn = seconds_chart("Seconds", table_of(parts, late))
    assert drawn is not None
    found = hovered(drawn.hover)
    assert list(found) == [*PHASES, "other"]
    assert (found["generate"], found["update"], found["other"]) == (
        ["2 s", "1.5 s"],
        ["1.5 s", "0 s"],
        ["0.5 s", "0 s"],
    )


def test_columns_average_steps() -> None:
    steps = [float(step) for step in range(100)]
    edges, heights = columns(steps, [steps])  # 100 steps in columns of 3: 33 of them and a last one of 1
    assert len(heights[0]) == 34
    assert (heights[0][:2], heights[0][-1]) == ([1.0, 4.0], 99.0)
    assert (edges[0], edges[1], edges[-1]) == (-0.5, 2.5, 99.5)
    assert columns([7.0], [[2.0]])[0] == [6.5, 7.5]


def test_shares_of_counts_leave_out_the_steps_without_any() -> None:
    drawn = shares_chart("Groups", table_of({"h": [1, 3]}, {"h": [2, 1, 1]}, {"h": [0, 0]}), "h", "")
    assert drawn is not None
    assert hovered(drawn.hover) == {"0": ["25 %", "50 %"], "1": ["75 %", "25 %"], "2": ["0 %", "25 %"]}


def test_the_replays_share_of_the_advantage_mass() -> None:
    masses = ({"advantage/mass/fresh": 30.0, "advantage/mass/replay": 10.0}, {"advantage/mass/replay": 2.0}, {"a": 1})
    lines = table_of(*masses).lines(0, 3)
    assert [replay_share([line]) for line in lines] == [0.25, 1.0, None]
    assert replay_share(lines) == pytest.approx(12 / 42)


@pytest.mark.parametrize("count", [1, 2, 9, 17])
def test_the_ramp_runs_from_failed_to_solved(count: int) -> None:
    colours = ramp(count)
    assert colours[0] == "#c8553d"
    assert colours[-1] == ("#2a7f78" if count > 1 else "#c8553d")
    assert len(set(colours)) == count


def test_every_metric_that_pages_name_is_in_the_catalogue() -> None:
    names = {f"time/{phase}" for phase in (*PHASES, *report.EXTRAS)}
    for source in Path(report.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+(/[a-z_]+)+", str(node.value)):
                names.add(str(node.value))
    assert {"time/step", "group/replays", "advantage/mass/replay"} <= names
    for name in names - {"text/css", "text/javascript", "text/html"}:
        metric_for(name)


def test_compute_counts_a_trained_token_three_times() -> None:
    counted = {"compute/generated_tokens": 100.0, "compute/scored_tokens": 50.0, "compute/trained_tokens": 30.0}
    table = table_of(counted, {"a": 1.0})
    assert [compute_at(table, step) for step in range(3)] == [0.0, 240.0, None]
    assert compute_at(table_of({"a": 1.0}), 0) is None


def test_the_share_of_lost_questions_is_a_mean_over_steps() -> None:
    table = table_of(*({"prompts/lost": float(at), "rollout/prompts": 4.0} for at in range(4)))
    assert lost_share(table, window=2) == [(0.0, 0.0), (1.0, 1 / 8), (2.0, 3 / 8), (3.0, 5 / 8)]


def test_axes_have_round_numbers_and_a_logarithmic_one_powers_of_ten() -> None:
    assert ticks(0.13, 0.47)[2] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert ticks(3, 97, inside=True)[2] == [20, 40, 60, 80]
    assert ticks(0.02, 30, log=True) == (0.01, 100.0, [0.01, 0.1, 1.0, 10.0, 100.0])


def test_smoothing_has_no_bias_at_the_start() -> None:
    # weights 0.5 and 0.25 + 0.5: (0.25 · 8 + 0.5 · 2) / 0.75
    assert smoothed([(0, 8.0), (1, 2.0)], 0.5) == [(0, 8.0), (1, 4.0)]


def test_a_curve_is_smoothed_before_it_is_thinned() -> None:
    points = [(float(x), 90.0 if x % 50 == 1 else float(x % 2)) for x in range(5001)] + [(5001.0, 0.5)]
    assert thinned(points)[-1] == (5001.0, 0.5)
    assert len(thinned(points)) <= 640
    drawn = line_chart("Loss", [Curve("loss", points)], STEP, Axis("nats"), look=ChartLook(smooth=0.99))
    assert drawn is not None
    assert drawn.keys[0].last == "0.5"
    (hovered,) = json.loads(drawn.hover)
    truth = smoothed(points, 0.99)
    assert hovered["points"][-1][2:] == ["5001", number(truth[-1][1])]
    heights = [float(place[3]) for place in hovered["points"]]
    inside = [value for at, value in truth if at > 1000]
    assert (
        max(heights[-150:]) <= max(inside) + 0.01
    )  # about 2.3 = 0.5 + 90/50: the mean of the values, not of the peaks


def test_a_chart_draws_what_its_reader_asks_for() -> None:
    curve = Curve("loss", [(float(at), 10.0**-at) for at in range(5)])
    part = line_chart("Loss", [curve], STEP, Axis("nats"), look=ChartLook(log=True, low=1, high=3))
    assert part is not None
    assert (part.low, part.high) == (1, 3)
    assert [label for _, label in part.y_ticks] == ["0.001", "0.01", "0.1"]
    (line,) = part.marks
    heights = [float(point.split(",")[1]) for point in line.path.split()]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)  # equal factors, equal distances
    assert line_chart("Loss", [Curve("loss", [])], STEP, Axis("nats")) is None
    bands = [(Key("a", "c0"), [1.0, 3.0]), (Key("b", "c1"), [1.0, 1.0])]
    stack = stack_chart("Parts", [0.0, 1.0], bands, Axis("seconds", "s"))
    assert stack is not None
    assert stack.y_ticks[-1][1] == "4 s"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.40625, "share", "40.6 %"), (1.0, "share", "100 %"), (3.0, "", "3"), (1234567.0, "", "1.23M"), (0.000123, "", "1.2e-4"),
        (0.0094, "s", "9.4 ms"), (75.0, "s", "1 min 15 s"), (7500.0, "s", "2 h 5 min"), (0.4211, "s", "0.421 s"),
        (float("nan"), "", "–"), (None, "", "–"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_as_a_person_would(value: float | None, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_metrics_and_ids_are_shown_in_words() -> None:
    assert label_of("group/solved_by_replay") == "Groups rescued by a replay"
    assert label_of("time/update") == "Seconds: update"
    assert label_of("mine") == "mine"
    assert short("rlep:0123456789abcdef") == "rlep:01234567…"
    assert short("0123456789abcdef" * 2) == "01234567…"
    assert short("aime-2024-problem-7") == "aime-2024-problem-7"
    assert duration(200_000) == "2 d 7 h"
