"""Step breakdown: spans of work, what a step waited for, and how much of its time each role was idle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DRIVER, STEP = "driver", "step"
"""Actor and name of the span of a whole step; its ``count`` is the step's number."""
GENERATE = "generate"
LATEST = 1e12
"""Seconds since the epoch before which a time lies, by tens of thousands of years."""
_LEARNER = ("score", "update", "publish", "save", "load")
WAITS_FOR: dict[str, tuple[str, ...]] = {
    STEP: ("load weights", *_LEARNER),
    "load weights": ("publish",),
    "publish": _LEARNER,
    "update": (*_LEARNER, "sample"),
    "score": (*_LEARNER, "sample", "grade"),
    "grade": (GENERATE, "grade", "act"),
    "act": (GENERATE, "act"),
    GENERATE: (GENERATE, "grade", "act", "load weights", "start"),
    "sample": ("sample", "load weights"),
}
"""Name → the spans that must have handed over before one of that name (or a step's end) begins; others wait for nothing."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work; times in seconds since the epoch."""

    actor: str
    what: str
    begin: float
    end: float
    count: int = 0
    """Requests or responses in it."""


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Time of one whole step, by who used it."""

    number: int
    begin: float
    end: float
    path: tuple[Span, ...]
    """Its critical path, first link first, each cut to the time it determined."""
    idle: Mapping[str, float]
    """Role → share of the step in which its actors, on average, had no work."""

    @property
    def seconds(self) -> float:
        """Seconds it took."""
        return self.end - self.begin

    def path_seconds(self) -> dict[str, float]:
        """Seconds of the critical path by the name of the work, most first; ``waiting`` is what lies between."""
        seconds: dict[str, float] = {}
        for link in self.path:
            seconds[link.what] = seconds.get(link.what, 0.0) + link.end - link.begin
        ordered = dict(sorted(seconds.items(), key=lambda entry: -entry[1]))
        return ordered | {"waiting": self.seconds - sum(ordered.values())}


def critical_path(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """The chain of spans that determined when a step, which began at ``begin``, came to its ``end``.

    It is walked backwards. At time t (first the step's end) stands a span that could not begin before t, and the link
    before it is, of the spans it can have waited for (``WAITS_FOR``), the one that handed over last before t. A span
    hands over when it ends; ``generate`` at t itself while it goes on, since completions are handed over one by one. Of several
    that hand over at once it is the one that began first. A link holds from its begin, but not before the step's, to
    its handing over; then t is its begin. What lies between handing over and t is waiting: network, a queue, the
    driver. The walk ends at the step's begin, or where nothing has handed over before t.

    Returns the links in order of time, each as a span cut to what it determined; they never overlap.
    """
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        if span.actor != DRIVER and span.end > begin and span.begin < end:
            by_name.setdefault(span.what, []).append(span)
    path: list[Span] = []
    now, name = end, STEP
    while now > begin:
        handed_over = [
            (min(span.end, now), -span.begin, span)
            for feeder in WAITS_FOR.get(name, ())
            for span in by_name.get(feeder, ())
            if span.begin < now and (span.end <= now or feeder == GENERATE)
        ]
        if not handed_over:
            break
        at, _, span = max(handed_over, key=lambda found: found[:2])
        if at <= begin:
            break
        now, name = max(span.begin, begin), span.what
        path.append(Span(span.actor, span.what, now, at, span.count))
    return path[::-1]


def busy_seconds(spans: Iterable[Span], begin: float, end: float) -> dict[str, float]:
    """Actor → seconds between ``begin`` and ``end`` in which it had work; overlapping work counts once."""
    busy: dict[str, float] = {}
    until: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        start = max(span.begin, until.get(span.actor, begin), begin)
        stop = min(span.end, end)
        busy[span.actor] = busy.get(span.actor, 0.0) + max(0.0, stop - start)
        until[span.actor] = max(stop, start)
    return busy


def busy_shares(spans: Sequence[Span]) -> dict[str, float]:
    """Actor → share of the whole time, from the first begin to the last end, in which it had work; not the driver."""
    spans = [span for span in spans if span.actor != DRIVER]
    if not spans:
        return {}
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    whole = end - begin
    return {actor: s / whole if whole else 0.0 for actor, s in sorted(busy_seconds(spans, begin, end).items())}


def idle_shares(spans: Iterable[Span], begin: float, end: float, actors: Collection[str] = ()) -> dict[str, float]:
    """Role → mean over its actors of the share of the time between ``begin`` and ``end`` without work.

    Counted are the actors that ``spans`` names, and ``actors``, which may have had no work at all; never the driver.
    """
    shares: dict[str, list[float]] = {}
    for actor, seconds in (dict.fromkeys(actors, 0.0) | busy_seconds(spans, begin, end)).items():
        if actor != DRIVER:
            shares.setdefault(role_of(actor), []).append(1 - seconds / (end - begin))
    return {role: sum(found) / len(found) for role, found in sorted(shares.items())}


def role_of(actor: str) -> str:
    """``generator`` of ``generator-3``; a name without a number is its own role."""
    stem, _, number = actor.rpartition("-")
    return stem if stem and number.isdigit() else actor


def steps_of(spans: Iterable[Span]) -> list[Span]:
    """The whole steps, oldest first."""
    steps = [span for span in spans if span.actor == DRIVER and span.what == STEP and span.end > span.begin]
    return sorted(steps, key=lambda span: span.begin)


def breakdown_of(step: Span, spans: Iterable[Span], actors: Collection[str] = ()) -> StepBreakdown:
    """Return the time of ``step`` by who used it; ``actors`` are counted as idle where they had no work in it."""
    inside = [span for span in spans if span.end > step.begin and span.begin < step.end]
    path = critical_path(inside, step.begin, step.end)
    return StepBreakdown(
        step.count, step.begin, step.end, tuple(path), idle_shares(inside, step.begin, step.end, actors)
    )


def chrome_trace(spans: Sequence[Span]) -> dict[str, object]:
    """Trace events in microseconds from the first begin: a process for each actor, a thread for each of its lanes.

    A lane holds spans that do not overlap; concurrent calls of one actor stand in lanes below each other.
    """
    actors = sorted({span.actor for span in spans})
    origin = min((span.begin for span in spans), default=0.0)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": actor}}
        for pid, actor in enumerate(actors)
    ]
    lanes: dict[str, list[float]] = {actor: [] for actor in actors}
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        ends = lanes[span.actor]
        lane = next((number for number, end in enumerate(ends) if end <= span.begin), len(ends))
        ends[lane : lane + 1] = [span.end]
        events.append(
            {
                "ph": "X",
                "name": span.what,
                "pid": actors.index(span.actor),
                "tid": lane,
                "ts": round((span.begin - origin) * 1e6),
                "dur": round((span.end - span.begin) * 1e6),
                "args": {"count": span.count} if span.count else {},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"begin": origin}}


def spans_of(trace: Mapping[str, Any]) -> list[Span]:
    """Return the spans that ``chrome_trace`` was made of, by begin. Raises ``ValueError`` for anything else."""
    try:
        events, origin = trace["traceEvents"], float(trace["otherData"]["begin"])
        names = {event["pid"]: str(event["args"]["name"]) for event in events if event["ph"] == "M"}
        spans = [
            Span(
                names[event["pid"]],
                str(event["name"]),
                origin + event["ts"] / 1e6,
                origin + (event["ts"] + event["dur"]) / 1e6,
                int(event["args"].get("count", 0)),
            )
            for event in events
            if event["ph"] == "X"
        ]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a trace of rlep: {error!r}") from None
    if not all(-LATEST < span.begin <= span.end < LATEST for span in spans):
        raise ValueError("not a trace of rlep: a time is infinite, or a span ends before it begins")
    return spans
