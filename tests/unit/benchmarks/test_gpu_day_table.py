"""Figures that ``scripts/gpu_day_table.py`` takes from what the stages of a day on GPUs wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from scripts.gpu_day_table import collected, tables

STEPS = [  # generate, update, peak, difference
    (90.0, 30.0, 5 * 2**30, 0.02),
    (10.0, 4.0, 6 * 2**30, 0.03),
    (12.0, 6.0, 7 * 2**30, 0.01),
]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def day(tmp_path: Path) -> Path:
    (tmp_path / "small" / "rollouts").mkdir(parents=True)
    keys = ("time/generate", "time/update", "update/peak_memory", "weights/logprob_difference")
    metrics = [{"step": step, "metrics": dict(zip(keys, values, strict=True))} for step, values in enumerate(STEPS)]
    write_lines(tmp_path / "small" / "metrics.jsonl", metrics)
    columns = {
        "replayed": [False, False, True],
        "tokens": [1, 3, 100],
        "gap_mean": [0.08, 0.04, 9.0],
        "gap_max": [0.08, 0.25, 9.0],
    }
    parquet.write_table(pa.table(columns), tmp_path / "small" / "rollouts" / "step-000000.parquet")
    stages = [("check", 1, 7), ("check", 0, 60), ("small", 0, 300), ("whole", 124, 3600)]
    write_lines(
        tmp_path / "stages.jsonl", [dict(zip(("stage", "status", "seconds"), stage, strict=True)) for stage in stages]
    )
    finding = {"what": "attention", "level": "ok", "detail": "within 0.005 of float32", "remedy": "", "messages": ""}
    (tmp_path / "check.json").write_text(json.dumps({"ok": True, "findings": [finding]}))
    (tmp_path / "speed.jsonl").write_text('a line of a library\n{"mode": "plain", "tokens_per_second": 8400.0}\n')
    (tmp_path / "memory-7B-lora.json").write_text('{"shape": "7B", "peak_bytes": 30}')
    return tmp_path


def test_figures_are_those_of_steps_and_tokens(day: Path) -> None:
    found = collected(day)
    assert [line["stage"] for line in found["stages"]] == ["check", "small", "whole"]
    small = found["stages"][1]
    assert (small["time/generate"], small["time/update"], small["steps"]) == (11.0, 5.0, 3)  # the first step compiles
    assert (small["peak_allocated"], small["published_logprob_largest"]) == (7 * 2**30, 0.03)
    assert small["logprob_mean"] == pytest.approx((0.08 * 1 + 0.04 * 3) / 4)  # by tokens, without replays
    assert small["logprob_largest"] == 0.25
    assert found["speed"] == [{"mode": "plain", "tokens_per_second": 8400.0}]
    assert found["memory"] == [{"shape": "7B", "peak_bytes": 30}]


def test_the_table_has_a_row_for_each_stage_the_last_time_it_was_made(day: Path) -> None:
    lines = list(tables(collected(day)))
    assert lines[2:5] == [
        "| check | ok | 60 |  |  |  |",
        "| small | ok | 300 | 7.0 GiB | 0.0500 | 0.2500 |",
        "| whole | failed (124) | 3,600 |  |  |  |",
    ]
    assert "| generate | 11.00 |" in lines
    assert "ok      attention: within 0.005 of float32" in lines
    assert lines[-2:] == [
        'speed: {"mode": "plain", "tokens_per_second": 8400.0}',
        'memory: {"shape": "7B", "peak_bytes": 30}',
    ]
