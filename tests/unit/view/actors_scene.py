"""A run with actors that were lost, restarted and drained."""

from __future__ import annotations

import json
from pathlib import Path

from rlep.actors.timeline import write_trace
from rlep.metrics.spans import Span
from tests.unit.view.console_scene import ATTACK

T = 1_000_000.0


def write_files(run: Path) -> None:
    """Two steps; generator-1 is lost twice and comes back once, verifier-0 is drained; a timeline of two steps of 10 s."""
    run.mkdir(parents=True)
    base = {"time/generate": 4.0, "time/verify": 1.0, "time/update": 3.0, "actors/alive/generator": 2}
    caches = [{"generator/kv_use": 0.5, "generator/preempted": 0}, {"generator/kv_use": 1.0, "generator/preempted": 37}]
    lines = [
        {"step": 0, "wall_s": 9.0, "metrics": base | caches[0] | {"time/step": 10.0, "actors/restarts/generator": 0}},
        {"step": 1, "wall_s": 21.0, "metrics": base | caches[1] | {"time/step": 12.0, "actors/restarts/generator": 1}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    happened = [
        ("actor_started", "of-an-earlier-life", ""),
        ("data_loaded", None, ""),
        ("actor_started", "generator-0", ""),
        ("actor_started", "generator-1", ""),
        ("run_resumed", None, ""),
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
