"""A run's line in the list: its state, and that nothing is read again until a file changes."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import pytest

from rlep.metrics.logs import EventLog
from rlep.view import run_files, state
from rlep.view.run_files import RunPlace, find_runs
from rlep.view.run_page import overview
from rlep.view.state import LATEST_S, STEPS_A_CHANGE, complete_mark, mark_of, summary_of
from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import page


def written(run: Path, name: str, *lines: object, age_s: float = 0.0) -> None:
    """Append lines; the file was last changed so long ago."""
    with (run / name).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    os.utime(run / name, (time.time() - age_s,) * 2)


def step(number: int, seconds: float) -> dict[str, object]:
    return {"step": number, "metrics": {"time/step": seconds, "rollout/accuracy": 0.25 * number}}


def test_a_run_that_writes_nothing_for_long_is_silent(tmp_path: Path) -> None:
    place = RunPlace("a", tmp_path)
    written(tmp_path, "events.jsonl", {"event": "run_started"}, age_s=3 * LATEST_S)
    assert summary_of(place).state == "silent"
    written(tmp_path, "metrics.jsonl", step(0, 1.0))
    assert (summary_of(place).state, summary_of(place).steps) == ("running", 1)
    written(tmp_path, "metrics.jsonl", step(1, 1.0), age_s=2 * LATEST_S)
    assert (summary_of(place).state, summary_of(place).accuracy) == ("silent", 0.25)
    written(
        tmp_path, "metrics.jsonl", step(2, LATEST_S), age_s=(STEPS_A_CHANGE - 1) * LATEST_S
    )  # its steps take so long
    assert summary_of(place).state == "running"
    written(tmp_path, "events.jsonl", {"event": "run_finished"}, age_s=2 * LATEST_S)
    assert summary_of(place).state == "finished"


def test_a_phase_that_its_study_stopped_at_the_budget_is_finished(tmp_path: Path) -> None:
    run = tmp_path / "train-0-1"
    run.mkdir()
    written(run, "events.jsonl", {"event": "run_interrupted"})
    place = RunPlace("a", run)
    assert summary_of(place).state == "interrupted"
    complete_mark(run).touch()
    assert summary_of(place).state == "finished"
    written(run, "events.jsonl", {"event": "run_failed"})
    assert summary_of(place).state == "failed"


def test_the_line_has_the_last_held_out_accuracy(tmp_path: Path) -> None:
    place = RunPlace("a", tmp_path)
    written(tmp_path, "events.jsonl", {"event": "run_started"})
    assert summary_of(place).held_out is None
    rows = [{"step": 8, "data_source": name, "avg": avg} for name, avg in (("easy", 0.5), ("hard", 0.1), ("all", 0.25))]
    written(tmp_path, "evaluations.jsonl", {"step": 0, "data_source": "all", "avg": 0.125}, *rows)
    held_out = summary_of(place).held_out
    assert held_out is not None
    assert held_out.avg == 0.25
    assert "<b>25 %</b>" in overview([place])


def test_a_model_directory_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    written(tmp_path / "runs" / "a", "events.jsonl", {"event": "run_started"})
    (tmp_path / "runs" / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / "runs" / "model" / name).write_text("{}")
    assert list(find_runs([tmp_path / "runs"])) == ["runs~a"]


def test_a_run_whose_driver_was_killed_is_dead_at_once(tmp_path: Path) -> None:
    place = RunPlace("a", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "manifest.json").write_text(json.dumps({"host": platform.node()}))
    with EventLog(tmp_path / "events.jsonl") as events:  # as a driver holds it
        events.log("run_started")
        assert summary_of(place).state == "running"
        working = mark_of(place)
    assert summary_of(place).state == "dead"
    assert mark_of(place) != working  # no file has changed
    with EventLog(tmp_path / "events.jsonl"):
        assert (summary_of(place).state, mark_of(place)) == ("running", working)
    (tmp_path / "manifest.json").write_text(json.dumps({"host": "another-machine"}))
    assert summary_of(place).state == "running"


def test_what_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = RunPlace("a", tmp_path)
    written(tmp_path, "config.json", {"run": {"name": "first", "steps": 8}})
    written(tmp_path, "metrics.jsonl", step(0, 1.0))
    before = summary_of(place)
    assert (before.label, before.planned) == ("first", 8)

    def never(*_: object) -> None:
        raise AssertionError("a file was read")

    with monkeypatch.context() as patch:
        patch.setattr(state, "_read", never)
        assert summary_of(place) == before
    (tmp_path / "config.json").unlink()
    assert summary_of(place).label == "a"
    (tmp_path / "config.json").write_text('{"run": {"name": "second", "steps": "8"}}')
    assert (summary_of(place).label, summary_of(place).planned) == ("second", None)


def test_of_many_runs_and_studies_the_newest_are_listed_and_all_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MOST_RUNS", 2)
    for name, changed in (("a", 1000), ("b", 4000), ("c", 3000), ("d", 2000)):
        for kind, mark in (("run", "events.jsonl"), ("study", "plan.json")):
            directory = tmp_path / "all" / f"{kind}-{name}"
            directory.mkdir(parents=True)
            (directory / mark).write_text("{}\n")
            os.utime(directory / mark, (changed, changed))
    client = client_of(tmp_path / "all")
    for path, kind, what in (("/", "run", "runs"), ("/studies", "study", "studies")):
        text = page(client, path)
        listed = [name for name in "abcd" if f"all~{kind}-{name}<" in text]
        assert listed == ["b", "c"], text
        assert f"4 {what} are here; listed are the 2 that changed last. Others open at /{what}/NAME" in text
        assert client.get(f"/{what}/all~{kind}-a").status_code == 200
