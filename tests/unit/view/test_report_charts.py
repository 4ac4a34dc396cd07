"""The numbers behind the charts, by hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from rlep.metrics.catalogue import metric_for
from rlep.report import page as page_module
from rlep.report.accuracy_charts import columns, seconds_by_phase
from rlep.report.charts_replay import lost_share, ramp, replay_share, shares
from rlep.report.theme import LIGHT
from rlep.view.record import PHASES, MetricsRow, RunRecord, compute_at


def line(step: int, **lists: tuple[float, ...]) -> MetricsRow:
    return MetricsRow(step, 0.0, {}, lists)


def test_seconds_by_phase_leave_the_rest_to_other() -> None:
    parts = {"time/step": 4.0, "time/generate": 2.0, "time/update": 1.5}
    late = {"time/step": 1.0, "time/generate": 1.5}  # clocks overlap a little: the rest is never negative
    stack = seconds_by_phase([MetricsRow(0, 0, parts, {}), MetricsRow(1, 0, late, {})])
    assert stack[:, 0].tolist() == [2.0, 0, 0, 0, 1.5, 0, 0.5]
    assert stack[-1, 1] == 0


def test_columns_average_steps() -> None:
    steps = np.arange(100, dtype=np.float64)
    edges, heights = columns(steps, steps[None, :])  # 100 steps in columns of 3: 33 of them and a last one of 1
    assert heights.shape == (1, 34)
    assert heights[0, :2].tolist() == [1.0, 4.0]
    assert heights[0, -1] == 99.0
    assert edges[[0, 1, -1]].tolist() == [-0.5, 2.5, 99.5]
    assert columns(np.array([7.0]), np.array([[2.0]]))[0].tolist() == [6.5, 7.5]


def test_shares_of_histograms() -> None:
    lines = [line(0, h=(1, 3)), line(1, h=(2, 1, 1)), line(2, h=(0, 0))]
    assert shares(lines, "h").T.tolist() == [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0, 0, 0]]


def test_the_replays_share_of_the_advantage_mass() -> None:
    masses = [{"advantage/mass/fresh": 30.0, "advantage/mass/replay": 10.0}, {"advantage/mass/replay": 2.0}, {}]
    found = replay_share([MetricsRow(i, 0, numbers, {}) for i, numbers in enumerate(masses)])
    assert found[:2] == [0.25, 1.0]
    assert np.isnan(found[2])


@pytest.mark.parametrize("count", [1, 2, 9, 17])
def test_the_ramp_runs_from_failed_to_solved(count: int) -> None:
    colours = ramp(LIGHT, count)
    assert colours[0] == LIGHT.failed
    assert colours[-1] == (LIGHT.solved if count > 1 else LIGHT.failed)
    assert len(set(colours)) == count


def test_every_metric_the_report_reads_is_in_the_table() -> None:
    folder = Path(page_module.__file__).parent
    names = {f"time/{phase}" for phase in (*PHASES, *page_module.EXTRAS)}
    for source in folder.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+(/[a-z_]+)+", str(node.value)):
                names.add(str(node.value))
    assert {"time/step", "group/replays", "advantage/mass/replay"} <= names
    for name in names - {"image/svg", "text/html"}:
        metric_for(name)


def test_compute_counts_a_trained_token_three_times() -> None:
    counted = {"compute/generated_tokens": 100.0, "compute/scored_tokens": 50.0, "compute/trained_tokens": 30.0}
    run = load_run_of([MetricsRow(0, 0, counted, {}), MetricsRow(1, 0, {}, {})])
    assert [compute_at(run, step) for step in range(3)] == [0.0, 240.0, None]
    assert compute_at(load_run_of([MetricsRow(0, 0, {}, {})]), 0) is None


def load_run_of(lines: list[MetricsRow]) -> RunRecord:
    return RunRecord(Path(), "a", "rlep", 8, 2, None, True, tuple(lines), (), {}, None, {}, {}, (), ())


def test_the_share_of_lost_questions_is_a_mean_over_steps() -> None:
    lines = [MetricsRow(i, 0, {"prompts/lost": float(i), "rollout/prompts": 4.0}, {}) for i in range(4)]
    assert lost_share(lines, window=2) == [0.0, 1 / 8, 3 / 8, 5 / 8]
