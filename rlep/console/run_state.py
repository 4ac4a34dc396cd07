"""A run in one line: how far it is, and whether it still works."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlep.console.run_files import TAIL_BYTES, RunPlace, read_json, read_steps, read_tail
from rlep.core.errors import DataError

LATEST_S = 120.0
"""A run without an end in its events counts as running while its files change at least this often …"""
STEPS_A_CHANGE = 5
"""… or this many of its own steps."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run's line in the list."""

    name: str
    label: str
    command: str
    state: str
    steps: int
    planned: int | None
    accuracy: float | None
    reward: float | None
    changed: float
    """Seconds since the epoch; 0: never."""


def summary_of(place: RunPlace) -> RunLine:
    """From the configuration and the ends of the logs."""
    config, _ = read_json(place, "config.json")
    manifest, _ = read_json(place, "manifest.json")
    lines, _ = read_steps(place, TAIL_BYTES)
    events = read_tail(place, "events.jsonl").lines
    last, settings = (lines[-1] if lines else None), flat(config)
    planned = settings.get("run.steps", "")
    seconds = last.numbers.get("time/step", 0.0) if last else 0.0
    changed = _changed(place)
    return RunLine(
        name=place.name,
        label=settings.get("run.name", place.name),
        command=str(manifest.get("command", "–")),
        state=_state(events, time.time() - changed, max(LATEST_S, STEPS_A_CHANGE * seconds)),
        steps=last.step + 1 if last else 0,
        planned=int(planned) if planned.isdecimal() else None,
        accuracy=last.numbers.get("rollout/accuracy") if last else None,
        reward=last.numbers.get("rollout/reward") if last else None,
        changed=changed,
    )


def _state(events: Sequence[Mapping[str, Any]], idle_s: float, most_s: float) -> str:
    ends = {"run_finished": "finished", "run_interrupted": "interrupted", "run_failed": "failed"}
    begun = ("run_started", "run_resumed", "collection_finished", *ends)
    last = next((line["event"] for line in reversed(events) if line.get("event") in begun), None)
    if last == "collection_finished":
        return "finished"
    return ends.get(str(last)) or ("running" if idle_s < most_s else "silent")


def _changed(place: RunPlace) -> float:
    """When the run last wrote a line, seconds since the epoch; 0: never."""
    times = [0.0]
    for name in ("metrics.jsonl", "events.jsonl"):
        try:
            times.append(place.file(name).stat().st_mtime)
        except (OSError, DataError):
            continue
    return max(times)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``section.key`` → value as text."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = str(value)
    return found
