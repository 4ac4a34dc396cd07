"""The metric table, the JSONL files and what survives a kill."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.core.errors import DataError
from rlep.core.jsonl import JsonLines, read_lines
from rlep.metrics.catalogue import METRICS, PLACEHOLDERS, evaluation_metrics, flatten, metric_for
from rlep.metrics.logs import EvaluationsLog, EventLog, MetricsLog, read_metrics


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))

    def close(self, *, failed: bool = False) -> None:
        self.closed = True


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as stack:
        yield stack


def test_names_are_found_by_their_pattern() -> None:
    assert metric_for("rollout/accuracy").unit == "share"
    assert metric_for("verifier/status/timeout").name == "verifier/status/<status>"
    assert metric_for("ratio/max/replay").name == "ratio/max/<source>"
    assert metric_for("evaluation/math/dapo 17k/pass/8").name == "evaluation/<data_source>/pass/<k>"
    assert metric_for("evaluation/aime2024/avg").name == "evaluation/<data_source>/avg"


@pytest.mark.parametrize(
    "name",
    ["rollout/acuracy", "verifier/status/late", "ratio/max/<source>", "evaluation//avg", "evaluation/a/pass/0", ""],
)
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown metric"):
        metric_for(name)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean rollout/accuracy"):
        metric_for("rollout/acuracy")


def test_the_table_is_well_formed() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(metric.unit and metric.help and not metric.help.endswith(".") for metric in METRICS)
    used = {part.split(">")[0] for name in names for part in name.split("<")[1:]}
    assert used == set(PLACEHOLDERS)


def test_a_line_has_step_time_wall_and_metrics(tmp_path: Path, keep: ExitStack) -> None:
    clock = Clock()
    log = keep.enter_context(MetricsLog(tmp_path / "run" / "metrics.jsonl", clock=clock))
    clock.now += 12.5
    values: dict[str, Any] = {"rollout/accuracy": np.float32(0.25), "rollout/tokens": np.int64(640)}
    log.log(0, {**values, "group/fresh_successes": [3, 1, 0]})
    raw = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert raw["step"] == 0
    assert raw["wall_s"] == 12.5
    assert raw["metrics"] == {"rollout/accuracy": 0.25, "rollout/tokens": 640, "group/fresh_successes": [3, 1, 0]}
    assert isinstance(raw["metrics"]["rollout/tokens"], int)
    assert abs(raw["time"] - os.stat(log.path).st_mtime) < 60


def test_refused_lines_leave_the_file_as_it_was(tmp_path: Path, keep: ExitStack) -> None:
    log = keep.enter_context(MetricsLog(tmp_path / "metrics.jsonl"))
    log.log(4, {"time/step": 1.0})
    before = log.path.read_bytes()
    with pytest.raises(ValueError, match="unknown metric"):
        log.log(5, {"time/steps": 1.0})
    with pytest.raises(ValueError, match="is a list"):
        log.log(5, {"group/replays": 3})
    with pytest.raises(ValueError, match="is a number"):
        log.log(5, {"time/step": [1.0]})
    with pytest.raises(ValueError, match="step 4 does not follow step 4"):
        log.log(4, {"time/step": 1.0})
    assert log.path.read_bytes() == before


def test_non_finite_values_become_null_and_are_counted(tmp_path: Path, keep: ExitStack) -> None:
    log = keep.enter_context(MetricsLog(tmp_path / "metrics.jsonl"))
    log.log(0, {"update/grad_norm": math.nan, "loss/policy": -math.inf, "time/step": 2.0})
    assert read_metrics(log.path)[0].metrics == {
        "update/grad_norm": None,
        "loss/policy": None,
        "time/step": 2.0,
        "metrics/nonfinite": 2,
    }


def test_a_torn_last_line_is_not_read_and_is_cut_on_opening(tmp_path: Path, keep: ExitStack) -> None:
    path = tmp_path / "metrics.jsonl"
    log = keep.enter_context(MetricsLog(path))
    log.log(0, {"time/step": 1.0})
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 1, "ti')
    assert [line.step for line in read_metrics(path)] == [0]
    log = keep.enter_context(MetricsLog(path))
    assert path.read_bytes() == whole
    log.log(1, {"time/step": 1.0})
    assert [line.step for line in read_metrics(path)] == [0, 1]


def test_a_corrupt_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0}\nnonsense\n{"step":2}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_lines(path)
    path.write_text("[1, 2]\n")
    with pytest.raises(DataError, match="line 1 is not a JSON object"):
        read_lines(path)
    path.write_text('{"step":0}\n')
    with pytest.raises(DataError, match="is not a metrics file"):
        read_metrics(path)


def test_resuming_drops_later_steps_and_continues_the_clock(tmp_path: Path, keep: ExitStack) -> None:
    clock = Clock()
    path = tmp_path / "metrics.jsonl"
    log = keep.enter_context(MetricsLog(path, clock=clock))
    for step in range(4):
        clock.now += 10  # lines at 10, 20, 30, 40 s
        log.log(step, {"time/step": 10.0})
    log.close()
    clock.now += 5000  # the run is down
    log = keep.enter_context(MetricsLog(path, clock=clock))
    assert log.truncate_from(2) == 2
    assert [line.step for line in read_metrics(path)] == [0, 1]
    clock.now += 3
    log.log(2, {"time/step": 3.0})
    assert [line.wall_s for line in read_metrics(path)] == [10, 20, 23]
    assert log.truncate_from(3) == 0
    assert log.truncate_from(0) == 3
    assert path.read_bytes() == b""


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path: Path, keep: ExitStack) -> None:
    first = keep.enter_context(JsonLines(tmp_path / "events.jsonl"))
    with pytest.raises(DataError, match="already running"):
        JsonLines(tmp_path / "events.jsonl")
    first.close()
    JsonLines(tmp_path / "events.jsonl").close()


def test_lines_of_many_threads_stay_whole(tmp_path: Path, keep: ExitStack) -> None:
    log = keep.enter_context(EventLog(tmp_path / "events.jsonl"))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: log.log("actor_lost", i, detail="x" * 5000), range(64)))
    lines = read_lines(log.path)
    assert sorted(line["step"] for line in lines) == list(range(64))
    assert all(len(line["detail"]) == 5000 for line in lines)


def _write_until_killed(path: Path, ready: object) -> None:
    log = MetricsLog(path)
    for step in range(10**6):
        log.log(step, {"group/fresh_successes": [step] * 400})
        if step == 20:
            ready.set()  # type: ignore[attr-defined]


def test_a_killed_writer_loses_no_written_line(tmp_path: Path, keep: ExitStack) -> None:
    path = tmp_path / "metrics.jsonl"
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=_write_until_killed, args=(path, ready))
    writer.start()
    ready.wait()
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    log = keep.enter_context(MetricsLog(path))
    steps = [line.step for line in read_metrics(path)]
    assert len(steps) >= 21
    assert steps == list(range(len(steps)))
    log.log(len(steps), {"time/step": 1.0})


@pytest.mark.parametrize(("room", "reason"), [(5, "only 5 of 11 bytes written"), (0, "File too large")])
def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, keep: ExitStack, room: int, reason: str) -> None:
    log = keep.enter_context(JsonLines(tmp_path / "events.jsonl"))
    log.append({"step": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + room, limits[1]))
    try:
        with pytest.raises(OSError, match=reason) as caught:
            log.append({"step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(log.path)
    log.append({"step": 2})
    assert read_lines(log.path) == [{"step": 0}, {"step": 2}]


def test_unknown_events_are_refused(tmp_path: Path, keep: ExitStack) -> None:
    log = keep.enter_context(EventLog(tmp_path / "events.jsonl"))
    log.log("run_started")
    with pytest.raises(ValueError, match="unknown event 'run_begun'"):
        log.log("run_begun")
    line = read_lines(log.path)[0]
    assert (line["event"], line["step"]) == ("run_started", None)


def test_trackers_get_finite_flat_numbers(tmp_path: Path, keep: ExitStack) -> None:
    tracker = Recorder()
    log = keep.enter_context(MetricsLog(tmp_path / "metrics.jsonl", [tracker]))
    log.log(7, {"group/replays": [2, 5], "loss/policy": math.nan, "time/step": 1.5})
    log.close()
    assert tracker.lines == [
        (7, {"group/replays/0": 2.0, "group/replays/1": 5.0, "time/step": 1.5, "metrics/nonfinite": 1.0})
    ]
    assert tracker.closed


def test_evaluation_rows_become_metrics_and_lines(tmp_path: Path, keep: ExitStack) -> None:
    row: dict[str, object] = {
        "data_source": "aime2024",
        "questions": 30,
        "n": 32,
        "avg": 0.4,
        "ci": [0.3, 0.5],
        "maj": 0.5,
        "best": 0.8,
        "pass": {"1": 0.4, "32": 0.8},
        "interval": "words are no metric",
    }
    metrics = evaluation_metrics([row])
    assert metrics == {
        "evaluation/aime2024/questions": 30,
        "evaluation/aime2024/samples": 32,
        "evaluation/aime2024/avg": 0.4,
        "evaluation/aime2024/ci_low": 0.3,
        "evaluation/aime2024/ci_high": 0.5,
        "evaluation/aime2024/maj": 0.5,
        "evaluation/aime2024/best": 0.8,
        "evaluation/aime2024/pass/1": 0.4,
        "evaluation/aime2024/pass/32": 0.8,
    }
    assert flatten(metrics) == metrics
    assert all(metric_for(name) for name in metrics)
    assert "evaluation/x/ci_low" not in evaluation_metrics([{"data_source": "x", "avg": 1.0, "ci": None}])
    log = keep.enter_context(EvaluationsLog(tmp_path / "evaluations.jsonl"))
    log.log(8, [row, {**row, "data_source": "all"}], wall_s=61.23456)
    log.log(16, [row], wall_s=90.0)
    assert log.truncate_from(16) == 1
    assert [(line["step"], line["wall_s"], line["data_source"]) for line in read_lines(log.path)] == [
        (8, 61.235, "aime2024"),
        (8, 61.235, "all"),
    ]
