"""The page of a run's actors, against the files that it reads."""

from __future__ import annotations

from pathlib import Path

from tests.unit.view.actors_scene import write_files
from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import Found, assert_harmless, page


def test_who_waits_and_where_the_time_goes(tmp_path: Path) -> None:
    write_files(tmp_path / "runs" / "a")
    text = page(client_of(tmp_path / "runs"), "/runs/runs~a/actors")
    rows = Found(text).rows
    assert ["generate", "4 s", "4 s", "36.4 %"] in rows  # of 11 s on average
    assert ["waiting", "4 s", "3 s", "27.3 %"] in rows
    assert ["step", "12 s", "11 s", "100.0 %"] in rows
    assert ["generator", "2", "1"] in rows
    assert [row[:2] + row[3:5] for row in rows if row[0] in ("generator-1", "verifier-0") and len(row) == 6] == [
        ["generator-1", "lost", "2", "1"],
        ["verifier-0", "drained", "0", "0"],
    ]
    assert "of-an-earlier-life" not in text
    assert ["update", "3 s", "30 %"] in rows  # the critical path: generate 5 s, grade 1 s, score 0.5 s, update 3 s
    assert ["waiting", "0.5 s", "5 %"] in rows
    assert ["generator", "75 %"] in rows  # one of two generators worked for 5 of 10 s
    assert ["learner", "65 %"] in rows  # idle in the last step
    assert ["learner", "35 %"] in rows  # busy in both
    assert text.count('<rect class="p-generate"') == 2
    assert "<span>KV cache in use <b>100 %</b></span>" in text  # of the newest step
    assert "<span>Requests preempted <b>37</b></span>" in text
    assert_harmless(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    write_files(run)
    client = client_of(tmp_path / "runs")
    for content, reason in (
        (b"[]", "timeline.json is not a JSON object"),
        (b'{"traceEvents": [{"ph": "X"}]}', "timeline.json: not a trace of rlep"),
        (b'{"traceEvents": [], "otherData": {"begin": 0}}', "timeline.json has no whole step"),
        (b"{", "timeline.json cannot be read"),
        (None, "timeline.json is not written yet"),
    ):
        (run / "timeline.json").write_bytes(content) if content else (run / "timeline.json").unlink()
        text = page(client, "/runs/runs~a/actors")
        assert reason in text
        assert ["step", "12 s", "11 s", "100.0 %"] in Found(text).rows
    (run / "metrics.jsonl").write_text('{"step": 0, "metrics": {"actors/x": 1, "actors/a/b/c": 2, "time/step": 0}}\n')
    (run / "events.jsonl").write_text(
        '{"event": "actor_lost", "actor": ["x"]}\n{"event": "actor_lost", "actor": "y", "time": "z"}\n'
    )
    text = page(client, "/runs/runs~a/actors")
    assert [row[:2] for row in Found(text).rows if row and row[0] == "y"] == [["y", "lost"]]
