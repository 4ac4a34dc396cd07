"""What ``/api/`` says, against the files that it reads."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from rlep.core.jsonl import read_lines
from tests.unit.console.console_scene import ATTACK, client_of


def asked(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return answer.json()


def test_the_runs(client: TestClient, runs: Path) -> None:
    (found,) = asked(client, "runs")["runs"]
    assert {name: found[name] for name in ("name", "label", "command", "state", "steps", "planned")} == {
        "name": "runs~a",
        "label": "small",
        "command": "train",
        "state": "failed",
        "steps": 4,
        "planned": 4,
    }
    assert found["changed"] == max(
        (runs / "a" / name).stat().st_mtime_ns / 1e9 for name in ("metrics.jsonl", "events.jsonl")
    )


def test_the_metrics(client: TestClient, runs: Path) -> None:
    lines = read_lines(runs / "a" / "metrics.jsonl")
    found = asked(client, "runs/runs~a/metrics?name=rollout/accuracy&name=no/such&after=0")
    assert found["steps"] == [1, 2, 3]
    assert found["wall_s"] == [line["wall_s"] for line in lines[1:]]
    assert found["metrics"] == {
        "rollout/accuracy": [line["metrics"]["rollout/accuracy"] for line in lines[1:]],
        "no/such": [None] * 3,
    }
    whole = asked(client, "runs/runs~a/metrics")
    numbers = {name for line in lines for name, value in line["metrics"].items() if isinstance(value, int | float)}
    assert (whole["steps"], set(whole["metrics"]), whole["notes"]) == ([0, 1, 2, 3], numbers, [])


def test_the_steps(client: TestClient, runs: Path) -> None:
    assert asked(client, "runs/runs~a/steps") == {"run": "runs~a", "steps": [0, 1, 2, 3], "evaluations": [0, 2, 4]}
    found = asked(client, "runs/runs~a/steps/1")
    rows = pq.read_table(runs / "a" / "rollouts" / "step-000001.parquet").to_pylist()
    assert (found["groups"], found["page"], found["pages"], len(found["rows"])) == (4, 0, 1, len(rows))
    for shown, row in zip(found["rows"], rows, strict=True):
        assert shown == {name: row[name] for name in shown}
    assert asked(client, "runs/runs~a/steps/1?page=1")["rows"] == []


def test_what_is_no_json_number_is_null_and_texts_are_escaped(runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "runs" / "a"
    shutil.copytree(runs / "a", damaged, ignore=shutil.ignore_patterns("checkpoints"))
    path = damaged / "rollouts" / "step-000001.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("logprob")
    values = pa.array([math.nan] * len(table), table.schema.field("logprob").type)
    table = table.set_column(at, "logprob", values)
    extracted = pa.array([ATTACK] * len(table))
    pq.write_table(table.set_column(table.schema.get_field_index("extracted"), "extracted", extracted), path)
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "wall_s": 1e999, "metrics": {"rollout/accuracy": NaN, "\\ud800": 1}}\n{"step": 5')
    client = client_of(tmp_path / "runs")
    rows = asked(client, "runs/runs~a/steps/1")["rows"]
    assert {row["logprob"] for row in rows} == {None}
    assert {row["extracted"] for row in rows} == {ATTACK}
    answer = client.get("/api/runs/runs~a/metrics")
    found = json.loads(answer.text)
    assert (found["steps"][-1], found["wall_s"][-1], found["metrics"]["rollout/accuracy"][-1]) == (4, 0.0, None)
    assert found["notes"] == ["metrics.jsonl: the last line is unfinished"]
    assert answer.text.isascii()


@pytest.mark.parametrize("path", ["runs/nothing/metrics", "runs/runs~a/steps/77", "runs/..%2fa/steps", "nothing"])
def test_what_is_not_there(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, 404)
    assert answer.json()["error"]
