"""Small run directories for the tests of ``rlep.view.report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlep.metrics.catalogue import MetricValue
from rlep.metrics.logs import EvaluationsLog, EventLog, MetricsLog
from rlep.view.record import load_runs
from rlep.view.summary import Summary, summary_of

Curve = Sequence[tuple[int, float]]
STEPS = 20
"""Of a whole run."""


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def summary(runs: Sequence[Path]) -> Summary:
    """The numbers of some run directories."""
    return summary_of(load_runs(runs))


def write_run(
    directory: Path,
    curve: Curve,
    *,
    replays: int = 0,
    replay_source: str = "offline",
    done: int = STEPS,
    command: str = "train",
    source: str = "held-out",
    seconds: float = 2.0,
    width: float = 0.1,
) -> Path:
    """A run of ``done`` steps of ``seconds`` each, evaluated at the points of ``curve`` ± ``width``."""
    directory.mkdir(parents=True)
    config = {
        "run": {"name": directory.name, "steps": STEPS},
        "rollout": {"fresh": 3},
        "replay": {"count": replays, "source": replay_source, "minimum": 2},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "manifest.json").write_text(json.dumps({"command": command, "created": 1000.0, "git": "c8d5773"}))
    clock = Clock()
    with (
        MetricsLog(directory / "metrics.jsonl", clock=clock) as metrics,
        EvaluationsLog(directory / "evaluations.jsonl") as evaluations,
        EventLog(directory / "events.jsonl") as events,
    ):
        events.log("run_started", 0)
        for step in range(done + 1):
            for at, avg in curve:
                if at == step:
                    evaluations.log(step, [evaluation(avg, 4, source, width)], wall_s=metrics.wall_s)
            if step < done:
                clock.now += seconds
                metrics.log(step, step_metrics(seconds, replays))
        if done == STEPS:
            events.log("run_finished", done)
    return directory


def evaluation(avg: float, samples: int, source: str, width: float = 0.1) -> dict[str, object]:
    return {
        "data_source": source,
        "questions": 10,
        "n": samples,
        "avg": avg,
        "ci": [max(avg - width, 0), avg + width],
        "maj": avg,
        "best": avg + 0.1,
        "pass": {"1": avg, "2": avg + 0.05, str(samples): avg + 0.1},
    }


def step_metrics(seconds: float, replays: int) -> dict[str, MetricValue]:
    values: dict[str, MetricValue] = {
        "time/step": seconds,
        "time/generate": 0.5 * seconds,
        "time/update": 0.25 * seconds,
        "group/fresh_successes": [4, 2, 1, 1],
        "logprob/fresh": -0.5,
    }
    if replays:
        values |= {
            "group/replays": [2, 1, 5],
            "advantage/mass/fresh": 30.0,
            "advantage/mass/replay": 10.0,
            "loss/tokens/fresh": 240,
            "loss/tokens/replay": 60,
            "logprob/replay": -0.8,
            "logprob/replay_behaviour": -0.3,
        }
    return values


def write_collection(directory: Path) -> Path:
    """A collection of 8 questions that took 60 s."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"run": {"name": directory.name}}))
    (directory / "manifest.json").write_text(json.dumps({"command": "collect", "created": 1000.0}))
    (directory / "events.jsonl").touch()
    (directory / "metrics.jsonl").touch()
    (directory / "evaluations.jsonl").touch()
    covered = {"questions": 8, "covered": 6, "eligible": 4, "admitted": 15, "minimum": 2, "wall_s": 60.0}
    buckets = {"0": 2, "1": 2, "2-3": 3, "4-7": 1, "8+": 0}
    (directory / "collection.json").write_text(json.dumps({**covered, "buckets": buckets}))
    return directory
