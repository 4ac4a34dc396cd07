"""A run's actors, from what the run wrote: who is at work, where a step's time goes, and who waited."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlep.core.jsonl import LONGEST_LINE
from rlep.view.charts import STEP, Axis, ChartLook, Curve, line_chart
from rlep.view.last_steps import LastSteps, end_of
from rlep.view.record import PHASES, read_spans
from rlep.view.run_charts import metric_chart, seconds_chart
from rlep.view.run_files import RunPlace, StepLine, number_of, read_tail
from rlep.view.run_page import RECENT
from rlep.view.steps import read_steps
from rlep.view.templating import rendered

_STATES = {
    "actor_started": "at work",
    "actor_restarted": "at work",
    "actor_drained": "drained",
    "actor_lost": "lost",
}


@dataclass(slots=True)
class ActorLine:
    """One actor's state by the events."""

    name: str
    state: str = ""
    since: float = 0.0
    """Seconds since the epoch."""
    losses: int = 0
    restarts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """One part of a step."""

    name: str
    last: float
    mean: float
    share: float
    """Of the mean step."""


def actors(place: RunPlace, seen: str) -> str:
    """The page; ``seen`` is the ``mark_of`` the run before it was read."""
    table, notes = read_steps(place)
    lines = table.lines(len(table) - RECENT, len(table))
    events = read_tail(place, "events.jsonl", LONGEST_LINE)
    end, missing = timeline_end(place)
    newest = lines[-1].numbers if lines else {}
    roles = sorted({name.rpartition("/")[2] for name in newest if re.fullmatch("actors/(alive|restarts)/[a-z]+", name)})
    restarts = [Curve(role, table.points(f"actors/restarts/{role}")) for role in roles]
    drawn = [
        seconds_chart("Seconds of a step by stage", table),
        *(metric_chart(name, table, [name], ChartLook()) for name in ("generator/kv_use", "generator/preempted")),
        line_chart("Restarts so far", restarts, STEP, Axis("restarts", "restarts")),
    ]
    return rendered(
        "actors.html",
        run=place.name,
        seen=seen,
        actors=actor_lines(events.lines),
        roles=[(role, newest.get(f"actors/alive/{role}"), newest.get(f"actors/restarts/{role}")) for role in roles],
        stages=stages_of(lines),
        recent=len(lines),
        pictures=[chart for chart in drawn if chart],
        end=end,
        notes=[*notes, *events.notes, *missing],
    )


def actor_lines(events: Sequence[Mapping[str, Any]]) -> list[ActorLine]:
    """Every actor that the events name since a command last read the data, before it started any, in order."""
    begun = max((at for at, event in enumerate(events) if event.get("event") == "data_loaded"), default=0)
    found: dict[str, ActorLine] = {}
    for event in events[begun:]:
        state = _STATES.get(str(event.get("event")))
        if state is None or not isinstance(name := event.get("actor"), str):
            continue
        line = found.setdefault(name, ActorLine(name))
        line.state, line.since = state, number_of(event.get("time")) or 0.0
        line.losses += event["event"] == "actor_lost"
        line.restarts += event["event"] == "actor_restarted"
        if event["event"] == "actor_lost":
            line.error = str(event.get("error", ""))
    return list(found.values())


def stages_of(lines: Sequence[StepLine]) -> list[StageSeconds]:
    """Seconds of the newest step and means of the newest ones, by stage; what they leave is ``waiting``."""
    recent = [line.numbers for line in lines if "time/step" in line.numbers]
    if not recent:
        return []
    parts = [{name: numbers.get(f"time/{name}", 0.0) for name in PHASES} for numbers in recent]
    for part, numbers in zip(parts, recent, strict=True):
        part["waiting"] = max(0.0, numbers["time/step"] - sum(part.values()))
        part["step"] = numbers["time/step"]
    means = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
    whole = means["step"] or 1.0
    return [StageSeconds(name, parts[-1][name], mean, mean / whole) for name, mean in means.items()]


def timeline_end(place: RunPlace) -> tuple[LastSteps | None, list[str]]:
    """The last whole steps of ``timeline.json``, or why there are none."""
    spans, notes = read_spans(place)
    if notes == ("timeline.json is missing",):
        return None, ["timeline.json is not written yet: half a minute after the start, rlep timeline asks sooner"]
    if notes:
        return None, list(notes)
    end = end_of(spans)
    return end, [] if end else ["timeline.json has no whole step"]
