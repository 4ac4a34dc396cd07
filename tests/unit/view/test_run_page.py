"""The page of a run: its summary by hand, and what a reader may ask of charts, steps and events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlep.view.pages import word_difference
from rlep.view.run_files import StepLine
from rlep.view.run_page import time_left
from rlep.view.state import RunLine
from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import Found, assert_harmless, page


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of 150 steps whose driver is at work, and one of another state."""
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"run": {"name": "a", "steps": 200}}))
    (run / "manifest.json").write_text(json.dumps({"command": "train", "host": "another-machine"}))
    lines = []
    for step in range(150):
        numbers = {
            "rollout/accuracy": step / 200,
            "time/step": 2.0,
            "group/solved_by_replay": 0.25,
            "group/informative": 0.5,
        }
        numbers |= {
            "advantage/mass/fresh": 3.0,
            "advantage/mass/replay": 1.0,
            "replay/age": 8.0,
            "replay/trajectories": 4,
        }
        numbers |= {"rollout/part/format": 0.75, "rollout/length_mean": float(150 - step)}
        lines.append({"step": step, "wall_s": 3.0 * (step + 1), "metrics": numbers})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [
        {"step": step, "wall_s": 1.0, "data_source": "aime", "n": 4, "avg": avg}
        | {"ci": [avg - 0.1, avg + 0.1], "pass": {"1": avg, "4": 0.75}}
        for step, avg in ((0, 0.1), (64, 0.5), (128, 0.4))
    ]  # fmt: skip
    (run / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [
        {"event": "run_started", "time": 1.0},
        {"event": "actor_lost", "time": 2.0, "step": 3, "actor": "generator-7"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "events.jsonl").write_text('{"event": "run_finished"}\n')
    return tmp_path / "runs"


@pytest.fixture
def asking(home: Path) -> TestClient:
    return client_of(home)


def test_the_summary_comes_first_with_numbers_in_words(asking: TestClient) -> None:
    text = page(asking, "/runs/runs~a")
    cards = text.partition('<div class="cards">')[2].partition("<form")[0]
    for said in (
        '<div class="big">40 %</div>',
        "step 128, aime (30 % to 50 %)",
        "best 50 % at step 64 (40 % to 60 %)",
        "pass@4 75 %",
        '<div class="big">74.5 %</div>',
        "69.8 %, mean of the newest 20 steps",  # (130 + … + 149) / 20 / 200 = 139.5 / 200
        "150 of 200 steps",
        "about 2 min 30 s left",  # 50 steps of 3 s, evaluations included
        "2 s a step",
        '<div class="big">25 %</div>',
        "50 % of the groups have a learning signal",
        "25 % of the advantage mass is the replays",
        "8 steps old on average",
    ):
        assert said in cards.replace("\u00a0", " ")
    assert text.index('<div class="cards">') < text.index("<figure>") < text.index('id="steps"')
    assert_harmless(text)


@pytest.mark.parametrize(("state", "left"), [("running", 50.0), ("silent", 50.0), ("finished", None), ("dead", None)])
def test_the_time_left_is_that_of_the_newest_steps(state: str, left: float | None) -> None:
    line = RunLine("a", "a", "train", state, 15, 20, None, None, None, 1.0)
    recent = [StepLine(step, 10.0 * step, {"time/step": 8.0}) for step in range(5, 15)]
    assert time_left(line, recent) == left
    assert time_left(line, recent[:1]) is None


def test_steps_are_folded_paged_and_sorted(asking: TestClient) -> None:
    def steps(query: str) -> list[str]:
        text = page(asking, f"/runs/runs~a{query}").partition('id="steps"')[2].partition("</table>")[0]
        return [row[0] for row in Found(text).rows[1:]]

    assert '<details id="steps">' in page(asking, "/runs/runs~a")
    assert '<details id="steps" open>' in page(asking, "/runs/runs~a?page=1")
    assert steps("") == [str(step) for step in range(149, 49, -1)]
    assert steps("?page=1") == [str(step) for step in range(49, -1, -1)]
    assert steps("?sort=rollout/length_mean&down=1")[:2] == ["0", "1"]  # the longest first
    assert steps("?sort=no/such&down=0&page=9") == []


def test_chosen_metrics_and_the_user_s_own_are_drawn(asking: TestClient) -> None:
    text = page(asking, "/runs/runs~a?metric=replay/age&metric=no/such&smooth=0.9&log=1&low=10&high=70")
    titles = [one.partition("</h2>")[0] for one in text.split("<h2>")]
    assert (
        titles.index("Chosen")
        < titles.index("Held-out questions")
        < titles.index("Learning")
        < titles.index("Your own metrics")
    )
    assert "<h3>Age of replays</h3>" in text.partition("Held-out questions")[0]
    assert "Rollout: part, format" in text.partition("Your own metrics")[2]
    assert 'data-low="10" data-high="70"' in text
    for query in (
        "?smooth=nan&low=inf&high=-1e400",
        "?smooth=5&low=20&high=10",
        "?low=%3Cscript%3E&metric=%3Cscript%3E",
    ):
        assert_harmless(page(asking, f"/runs/runs~a{query}"))


def test_events_are_filtered_by_severity(asking: TestClient) -> None:
    text = page(asking, "/runs/runs~a?events=warning")
    assert "all (2)" in text
    assert "warning (1)" in text
    events = [row[1:] for row in Found(text.partition("<h2>Events</h2>")[2]).rows if len(row) == 5]
    assert events == [["Severity", "Event", "Step", ""], ["warning", "actor lost", "3", "actor: generator-7"]]


def test_the_list_has_held_out_accuracy_with_pass_at_k_and_is_searched(asking: TestClient) -> None:
    rows = Found(page(asking, "/")).rows
    run = next(row for row in rows if row[1] == "runs~a")
    assert run[5:7] == ["40 %30 % to 50 %", "75 %k = 4"]

    def names(query: str) -> list[str]:
        return [row[1] for row in Found(page(asking, f"/{query}")).rows[1:]]

    assert sorted(names("")) == ["runs~a", "runs~b"]
    assert names("?q=TRAIN") == ["runs~a"]
    assert names("?state=finished") == ["runs~b"]
    assert names("?q=%3Cscript%3E") == []


def test_a_difference_is_by_words() -> None:
    assert word_difference("so x is 3 now", "so y is 3") == [
        ("same", "so "), ("out", "x"), ("in", "y"), ("same", " is 3"), ("out", " now"),
    ]  # fmt: skip
    assert word_difference("", "") == []
