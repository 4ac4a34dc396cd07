"""The page of a run's actors, against the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path

from rlep.actors.timeline import write_trace
from rlep.metrics.spans import Span
from tests.unit.console.console_scene import ATTACK, client_of
from tests.unit.console.page_checks import Found, assert_harmless, page

T = 1_000_000.0


def write_files(run: Path) -> None:
    """Two steps; generator-1 is lost twice and comes back once, verifier-0 is drained; a timeline of two steps of 10 s."""
    run.mkdir(parents=True)
    base = {"time/generate": 4.0, "time/verify": 1.0, "time/update": 3.0, "actors/alive/generator": 2}
    lines = [
        {"step": 0, "wall_s": 9.0, "metrics": base | {"time/step": 10.0, "actors/restarts/generator": 0}},
        {"step": 1, "wall_s": 21.0, "metrics": base | {"time/step": 12.0, "actors/restarts/generator": 1}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    happened = [
        ("actor_started", "of-an-earlier-life", ""),
        ("run_resumed", None, ""),
        ("actor_started", "generator-0", ""),
        ("actor_started", "generator-1", ""),
        ("actor_lost", "generator-1", "first"),
        ("actor_restarted", "generator-1", ""),
        ("actor_lost", "generator-1", ATTACK),
        ("actor_started", "verifier-0", ""),
        ("actor_drained", "verifier-0", ""),
    ]
    events = [{"time": T, "event": name, "step": None, "actor": who, "error": why} for name, who, why in happened]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    spans = []
    for number in (0, 1):
        begin = T + 10 * number
        spans += [
            Span(f"generator-{number}", "generate", begin, begin + 5),
            Span(ATTACK, "grade", begin + 5, begin + 6),
            Span("learner", "score", begin + 6.5, begin + 7),
            Span("learner", "update", begin + 7, begin + 10),
            Span("driver", "step", begin, begin + 10, number),
        ]
    write_trace(run / "timeline.json", spans)


def test_who_waits_and_where_the_time_goes(tmp_path: Path) -> None:
    write_files(tmp_path / "runs" / "a")
    text = page(client_of(tmp_path / "runs"), "/runs/runs~a/actors")
    rows = Found(text).rows
    assert ["generate", "4", "4", "36.4 %"] in rows  # of 11 s on average
    assert ["waiting", "4", "3", "27.3 %"] in rows
    assert ["step", "12", "11", "100.0 %"] in rows
    assert ["generator", "2", "1"] in rows
    assert [row[:2] + row[3:5] for row in rows if row[0] in ("generator-1", "verifier-0") and len(row) == 6] == [
        ["generator-1", "lost", "2", "1"],
        ["verifier-0", "drained", "0", "0"],
    ]
    assert "of-an-earlier-life" not in text
    assert ["update", "3", "30 %"] in rows  # the critical path: generate 5 s, grade 1 s, score 0.5 s, update 3 s
    assert ["waiting", "0.5", "5 %"] in rows
    assert ["generator", "75 %"] in rows  # one of two generators worked for 5 of 10 s
    assert ["learner", "65 %"] in rows  # idle in the last step
    assert ["learner", "35 %"] in rows  # busy in both
    assert text.count('<rect class="p-generate"') == 2
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
        (None, "timeline.json is written when the run ends"),
    ):
        (run / "timeline.json").write_bytes(content) if content else (run / "timeline.json").unlink()
        text = page(client, "/runs/runs~a/actors")
        assert reason in text
        assert ["step", "12", "11", "100.0 %"] in Found(text).rows
    (run / "metrics.jsonl").write_text('{"step": 0, "metrics": {"actors/x": 1, "actors/a/b/c": 2, "time/step": 0}}\n')
    (run / "events.jsonl").write_text(
        '{"event": "actor_lost", "actor": ["x"]}\n{"event": "actor_lost", "actor": "y", "time": "z"}\n'
    )
    text = page(client, "/runs/runs~a/actors")
    assert [row[:2] for row in Found(text).rows if row and row[0] == "y"] == [["y", "lost"]]
