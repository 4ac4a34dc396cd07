"""What the pages show, against the files that they read; and what they show of damaged ones."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from rlep.config.settings import load_config
from rlep.core.jsonl import read_lines
from rlep.view.app import Console
from rlep.view.charts import STEP, Axis, Curve, line_chart, thinned
from rlep.view.compare_page import positions
from rlep.view.pages import histogram
from rlep.view.record import read_evaluations
from rlep.view.run_charts import AXES, evaluation_curve
from rlep.view.run_files import RunPlace
from rlep.view.state import mark_of
from rlep.view.steps import read_steps
from rlep.view.templating import figure, shade
from tests.small import BASE
from tests.unit.view.console_scene import ATTACK, client_of, write_run
from tests.unit.view.page_checks import Found, assert_harmless, page

PATHS = (
    "/",
    "/compare?run=runs~a&run=runs~b",
    "/runs/runs~a",
    "/runs/runs~a/steps/1",
    "/runs/runs~a/steps/1?show=wrong",
    "/runs/runs~a/steps/1/groups/2",
    "/runs/runs~a/evaluations/2",
    "/runs/runs~a/pool",
    "/runs/runs~a/actors",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("home") / "runs"
    for name, seed in (("a", 5), ("b", 6)):
        asyncio.run(write_run(directory / name, seed))
    return directory


def test_the_curves_table_has_the_numbers_of_metrics_jsonl(client: TestClient, runs: Path) -> None:
    found = Found(page(client, "/runs/runs~a")).rows
    head = next(row for row in found if row[:1] == ["Step ↓"])
    at = head.index("Correct fresh responses")
    shown = {row[0]: row[at] for row in found if len(row) == len(head) and row[0].isdecimal()}
    lines = read_lines(runs / "a" / "metrics.jsonl")
    assert shown == {str(line["step"]): figure(line["metrics"]["rollout/accuracy"], "share") for line in lines}


def test_a_step_shows_its_groups_and_filters_them(client: TestClient, runs: Path) -> None:
    rows = pq.read_table(runs / "a" / "rollouts" / "step-000001.parquet").to_pylist()
    wrong = [g for g in range(4) if not any(r["status"] == "correct" for r in rows if r["group"] == g)]
    fresh = [[r for r in rows if r["group"] == g and not r["replayed"]] for g in range(4)]
    found = [row for row in Found(page(client, "/runs/runs~a/steps/1")).rows if len(row) == 8 and row[0].isdecimal()]
    counts = [sum(row["status"] == "correct" for row in members) for members in fresh]
    assert [row[2].split(",")[0] for row in found] == [f"{count} of 3" for count in counts]
    assert ["rescued" in row[2] for row in found] == [not count for count in counts]  # every replay is correct
    assert f"{len(wrong)} of 4 groups" in page(client, "/runs/runs~a/steps/1?show=wrong")
    longest = Found(page(client, "/runs/runs~a/steps/1?show=long")).rows
    lengths = [int(row[4]) for row in longest if len(row) == 8 and row[0].isdecimal()]
    assert lengths == sorted(lengths, reverse=True)


def test_a_group_shows_fresh_responses_beside_replays(client: TestClient, runs: Path) -> None:
    text = page(client, "/runs/runs~a/steps/1/groups/2")
    rows = [r for r in pq.read_table(runs / "a" / "rollouts" / "step-000001.parquet").to_pylist() if r["group"] == 2]
    assert "Fresh responses (3)" in text
    assert "Replays (2)" in text
    for row in rows:
        assert f"advantage <b>{figure(row['advantage'])}</b>" in text
        assert f"{row['tokens']} tokens, {row['finish_reason']}" in text
    path = f"/runs/runs~a/prompts/{rows[0]['prompt_id']}"
    assert path in text
    assert "/runs/runs~a/steps/1/groups/2" in page(client, path)


def test_an_evaluation_counts_what_flipped(client: TestClient, runs: Path) -> None:
    def correct(step: int) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in pq.read_table(runs / "a" / "samples" / f"step-{step:06d}.parquet").to_pylist():
            counts[row["prompt_id"]] = counts.get(row["prompt_id"], 0) + (row["status"] == "correct")
        return counts

    before, now = correct(0), correct(2)
    flipped = sum(before[name] != now[name] for name in now)
    assert f"{flipped} of 3 questions changed since step 0" in page(client, "/runs/runs~a/evaluations/2")


def test_runs_are_compared_by_settings_and_last_values(client: TestClient) -> None:
    found = Found(page(client, PATHS[1])).rows
    assert ["run.seed", "5", "6"] in found


@pytest.mark.parametrize("path", PATHS)
def test_what_a_model_wrote_is_text(client: TestClient, path: str) -> None:
    assert_harmless(page(client, path))


@pytest.mark.parametrize("path", PATHS[2:])
def test_hostile_text_is_there_with_its_characters_named(client: TestClient, path: str) -> None:
    text = page(client, path)
    if "groups" in path:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "abc⟨U+202E⟩gnp.exe ⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+001B⟩[2J⟨U+0000⟩" in text
    assert ATTACK not in text


def test_what_is_damaged_is_named_and_the_rest_shown(runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "runs" / "a"
    shutil.copytree(runs / "a", damaged, ignore=shutil.ignore_patterns("checkpoints"))
    with (damaged / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "met')
    with (damaged / "events.jsonl").open("ab") as file:
        file.write(b"no json\n" + b"[" * 100_000 + b"\n")
    (damaged / "config.json").unlink()
    (damaged / "rollouts" / "step-000001.parquet").write_bytes(b"PAR1 not really PAR1")
    (damaged / "rollouts" / "step-000002.tokens.parquet").unlink()
    client = client_of(tmp_path / "runs")
    text = page(client, "/runs/runs~a")
    assert "metrics.jsonl: the last line is unfinished" in text
    assert "events.jsonl: 2 damaged or overlong lines are left out" in text
    assert "config.json is missing" in text
    assert "4 steps are done" in text
    assert "rollouts/step-000001.parquet is damaged" in page(client, "/runs/runs~a/steps/1")
    group = page(client, "/runs/runs~a/steps/2/groups/0")
    assert "rollouts/step-000002.tokens.parquet is missing" in group
    assert "Fresh responses (3)" in group
    shutil.rmtree(damaged / "rollouts")
    assert "rollouts/ has no files" in page(client, "/runs/runs~a")


def test_a_link_out_of_the_run_is_not_read(runs: Path, tmp_path: Path) -> None:
    linked = tmp_path / "runs" / "a"
    shutil.copytree(runs / "a", linked, ignore=shutil.ignore_patterns("checkpoints"))
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"key": "canary"}))
    (linked / "config.json").unlink()
    (linked / "config.json").symlink_to(secret)
    (tmp_path / "runs" / "b").symlink_to(runs / "b")
    client = client_of(tmp_path / "runs")
    text = page(client, "/runs/runs~a")
    assert "config.json is a link out of the run directory" in text
    assert "canary" not in text
    assert client.get("/runs/runs~b").status_code == 404


async def test_a_changed_file_is_an_event_without_content(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    place = RunPlace("a", tmp_path)
    changes = Console([tmp_path])._changes(place, mark_of(place))
    assert await anext(changes) == "retry: 2000\n\n"
    (tmp_path / "metrics.jsonl").write_text("a line\n")
    assert await asyncio.wait_for(anext(changes), 60) == f"event: changed\nid: {mark_of(place)}\ndata: \n\n"
    await changes.aclose()  # type: ignore[attr-defined]


async def test_what_changed_before_the_stream_began_is_an_event_at_once(tmp_path: Path) -> None:
    place = RunPlace("a", tmp_path)
    seen = mark_of(place)
    (tmp_path / "metrics.jsonl").write_text("a line\n")
    changes = Console([tmp_path])._changes(place, seen)
    assert [await anext(changes), await anext(changes)][1] == f"event: changed\nid: {mark_of(place)}\ndata: \n\n"
    await changes.aclose()  # type: ignore[attr-defined]


def test_curves_keep_their_peaks_and_histograms_count_all() -> None:
    points = [(float(x), 100.0 if x == 5003 else float(x % 7)) for x in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 1000
    assert (5003.0, 100.0) in kept
    assert histogram([1.0, -1.0, 1.0]) == [(-1.0, -1.0, 1), (1.0, 1.0, 2)]
    many = [0.0, 0.01, 0.02, 0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.95, 1.0]
    assert [count for _, _, count in histogram(many)] == [3, 6, 0, 0, 0, 0, 0, 0, 0, 2]
    assert [shade(value) for value in (None, -0.005, -0.05, -3.0, -9.0)] == ["s0", "s0", "s1", "s4", "s5"]


def test_the_labels_of_a_narrow_range_differ() -> None:
    def labels(*values: float) -> list[str]:
        drawn = line_chart("ratio/mean", [Curve("run", tuple(enumerate(values)))], STEP, Axis("ratio"))
        assert drawn
        return [label for _, label in drawn.y_ticks]

    assert labels(0.0, 0.705) == ["0", "0.2", "0.4", "0.6", "0.8"]
    assert labels(0.9996, 1.0004) == ["0.9996", "0.9998", "1", "1.0002", "1.0004"]
    assert labels(2.5) == ["0", "0.5", "1", "1.5", "2", "2.5"]
    assert labels(0.0) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        (
            {"url": "grpc://user:canary@evil.example:1", "token_file": "/etc/hostname"},
            "its pool is at grpc://evil.example:1:",
        ),
        ({"url": "redis://evil.example:x"}, "its pool is at an address that cannot be read"),
        ({"directory": "/etc"}, "its pool is in another directory"),
        ({"directory": "a" * 5000}, "its pool"),
        ({}, "no process serves its pool now"),
    ],
)
def test_a_pool_that_only_a_run_names_is_not_asked(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: dict[str, str], reason: str
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a pool was asked")

    monkeypatch.setattr("rlep.view.pool_pages.served_client", never)
    shutil.copytree(runs / "a", tmp_path / "runs" / "a", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "runs" / "a" / "config.json").write_text(json.dumps({"run": {"name": "a"}, "pool": pool}))
    client = client_of(tmp_path / "runs")
    text = page(client, "/runs/runs~a/pool")
    assert reason in text
    assert "canary" not in text
    assert re.search(r"[1-9]\d* replays in the newest 4 steps", text)
    first = pq.read_table(tmp_path / "runs" / "a" / "rollouts" / "step-000001.parquet").to_pylist()[0]["prompt_id"]
    assert reason in page(client, f"/runs/runs~a/prompts/{first}")


def test_a_prompt_has_its_evaluations(client: TestClient, runs: Path) -> None:
    rows = pq.read_table(runs / "a" / "samples" / "step-000002.parquet").to_pylist()
    name = rows[0]["prompt_id"]
    correct = [row["status"] == "correct" for row in rows if row["prompt_id"] == name]
    found = Found(page(client, f"/runs/runs~a/prompts/{name}")).rows
    assert ["2", f"{sum(correct)} of {len(correct)}"] in found


def test_a_prompt_says_how_to_watch_it(client: TestClient, runs: Path, tmp_path: Path) -> None:
    row = pq.read_table(runs / "a" / "rollouts" / "step-000001.parquet").to_pylist()[0]
    name = row["prompt_id"]
    setting = f"--set 'rollouts.watch=[\"{name}\"]'"
    assert load_config([BASE], shlex.split(setting)[1:]).rollouts.watch == (name,)
    text = page(client, f"/runs/runs~a/prompts/{name}")
    assert setting in html.unescape(text)
    assert f'<a href="/runs/runs~a/steps/1/groups/{row["group"]}">step 1</a>: {row["status"]}' in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text  # the first fresh response
    assert_harmless(text)
    shutil.copytree(runs / "a", tmp_path / "runs" / "a", ignore=shutil.ignore_patterns("checkpoints"))
    stored = json.loads((runs / "a" / "config.json").read_text())
    other = "0" * 32
    stored["rollouts"]["watch"] = [other, "'; rm -rf ~ #", 7, None]
    (tmp_path / "runs" / "a" / "config.json").write_text(json.dumps(stored))
    again = client_of(tmp_path / "runs")
    both = f'rollouts.watch=["{other}", "{name}"]'
    assert both in html.unescape(page(again, f"/runs/runs~a/prompts/{name}"))
    assert "rm -rf" not in page(again, f"/runs/runs~a/prompts/{name}")
    stored["rollouts"]["watch"] = [name]
    (tmp_path / "runs" / "a" / "config.json").write_text(json.dumps(stored))
    watched = page(again, f"/runs/runs~a/prompts/{name}")
    assert "kept in every step" in watched
    assert "--set" not in watched
    assert "--set" not in page(again, f"/runs/runs~a/prompts/{other}")  # no step has it


def test_a_damaged_token_file_is_named_on_the_page_of_a_prompt(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "runs" / "a", ignore=shutil.ignore_patterns("checkpoints"))
    files = tmp_path / "runs" / "a" / "rollouts"
    name = pq.read_table(files / "step-000001.parquet").to_pylist()[0]["prompt_id"]
    (files / "step-000001.tokens.parquet").write_bytes(b"PAR1 torn")
    text = page(client_of(tmp_path / "runs"), f"/runs/runs~a/prompts/{name}")
    assert "rollouts/step-000001.tokens.parquet is damaged" in text
    (files / "step-000001.tokens.parquet").unlink()
    assert "step-000001.tokens" not in page(client_of(tmp_path / "runs"), f"/runs/runs~a/prompts/{name}")


def test_a_step_shows_the_questions_whose_texts_were_kept(client: TestClient, runs: Path) -> None:
    kept = pq.read_table(runs / "a" / "rollouts" / "step-000001.tokens.parquet", columns=["group"])["group"].to_pylist()
    found = [row for row in Found(page(client, "/runs/runs~a/steps/1")).rows if len(row) == 8 and row[0].isdecimal()]
    assert {int(row[0]) for row in found if ATTACK[:20] in row[7]} == set(kept)


def test_a_question_of_evaluations_alone_is_shown_with_them(client: TestClient, runs: Path) -> None:
    row = pq.read_table(runs / "a" / "samples" / "step-000002.parquet").to_pylist()[0]
    text = page(client, f"/runs/runs~a/prompts/{row['prompt_id']}")
    assert "No step trained on it." in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "has this prompt" not in text
    samples = page(client, f"/runs/runs~a/evaluations/2?prompt={row['prompt_id']}")
    assert f"/runs/runs~a/prompts/{row['prompt_id']}" in samples
    assert "has this prompt" in page(client, f"/runs/runs~a/prompts/{'0' * 32}")


def test_runs_are_drawn_over_steps_time_or_compute(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    taken = ({"generated": 1e6, "scored": 2e6, "trained": 3e6}, {"generated": 4e6, "scored": 5e6, "trained": 6e6})
    lines = [
        {
            "step": at,
            "wall_s": 60.0 * (at + 1),
            "metrics": {f"compute/{name}_tokens": one for name, one in held.items()},
        }
        for at, held in enumerate(taken)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluated = [{"step": at, "wall_s": 30.0 + 90.0 * at, "data_source": "aime", "avg": 0.25 * at} for at in (0, 1, 2)]
    evaluated.append({"step": 9, "data_source": "aime", "avg": 0.5})  # of a line that is lost
    (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluated))
    place = RunPlace("runs~a", run)
    table, read = read_steps(place)[0], read_evaluations(place)[0]
    assert list(positions(table, "time")) == [1.0, 2.0]
    assert list(positions(table, "compute")) == [12.0, 27.0]  # 1 + 2 + 3 × 3, 4 + 5 + 3 × 6 million
    found = {over: evaluation_curve("a", read, table, over).points for over in AXES}
    assert found["steps"] == [(0, 0.0), (1, 0.25), (2, 0.5), (9, 0.5)]
    assert found["time"][1:] == [(0.5, 0.0), (2.0, 0.25), (3.5, 0.5)]
    assert found["compute"] == [(0.0, 0.0), (12.0, 0.25), (27.0, 0.5)]
    client = client_of(tmp_path / "runs")
    assert ["aime: held-out accuracy", "50 %"] in Found(page(client, "/compare?run=runs~a&over=compute")).rows
    assert '<option value="time" selected>' in page(client, "/compare?run=runs~a&over=time")
    assert "<h3>Evaluations: accuracy</h3>" in page(client, "/runs/runs~a")
    for path in ("/compare?run=runs~a&over=%3Cscript%3E", "/compare?over=time"):
        assert_harmless(page(client, path))


def test_what_a_field_sends_back_is_exact_and_hides_nothing_in_the_page(client: TestClient) -> None:
    sought = 'a\u202egnp\u200b"'
    text = page(client, f"/?q={quote(sought)}")
    (field,) = re.findall(r'<input[^>]*name="q"[^>]*>', text)
    assert "\u202e" not in field
    assert "\u200b" not in field
    assert html.unescape(field.partition('value="')[2].partition('"')[0]) == sought
