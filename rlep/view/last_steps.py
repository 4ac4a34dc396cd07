"""The last steps as they went: one track for each actor, what it did when, and what the last step waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlep.metrics.spans import DRIVER, Span, StepBreakdown, breakdown_of, busy_seconds, role_of, steps_of

STEPS = 3
"""Steps that are drawn."""
NARROWEST = 1 / 500
"""Gaps below this share of the picture are not drawn: a track has at most that many bars."""
ROLES = ("generator", "verifier", "environment", "pool", "failures", "learner")
"""Tracks from top to bottom."""
PHASE_OF = {
    "generate": "generate",
    "act": "generate",
    "grade": "verify",
    "sample": "replay",
    "add": "replay",
    "score": "score",
    "update": "update",
    "publish": "publish",
    "load weights": "publish",
}
"""Name of a span → the part of a step whose colour it has; others have the rest's."""

MOST_TRACKS = 64

Bars = dict[str, dict[str, list[tuple[float, float]]]]
"""Track → part of a step → (begin, seconds) of each bar."""


@dataclass(frozen=True, slots=True)
class ActorTrack:
    """One actor's work during the last steps."""

    actor: str
    busy: float
    """Share of the time."""
    bars: Sequence[tuple[str, float, float]]
    """(part of a step, from, width), in per cent of the time."""
    path: Sequence[tuple[float, float]]
    """(from, width) of its part of the last step's critical path."""


@dataclass(frozen=True, slots=True)
class LastSteps:
    """The end of a timeline."""

    seconds: float
    numbers: Sequence[int]
    starts: Sequence[tuple[float, int]]
    """Where each step begins, in per cent of the time, and its number."""
    phases: Sequence[str]
    """Parts of a step that are drawn."""
    tracks: Sequence[ActorTrack]
    more: int
    """Tracks that are not shown."""
    last: StepBreakdown
    """Where the last step's time went; actors at work in the steps before it count as idle in it."""


def last_steps(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """The last whole steps in a timeline, and the spans of their time; both empty without one."""
    steps = steps_of(spans)[-STEPS:]
    if not steps:
        return [], []
    begin, end = steps[0].begin, steps[-1].end
    return steps, [span for span in spans if span.actor != DRIVER and span.end > begin and span.begin < end]


def bars_of(spans: Sequence[Span], begin: float, end: float) -> Bars:
    """Bars of each track between ``begin`` and ``end``, from ``begin`` on; bars that nearly touch become one."""
    bars: Bars = {}
    for span in sorted(spans, key=lambda span: span.begin):
        start, stop = max(span.begin, begin) - begin, min(span.end, end) - begin
        row = bars.setdefault(span.actor, {}).setdefault(PHASE_OF.get(span.what, "other"), [])
        if row and start - sum(row[-1]) < NARROWEST * (end - begin):
            row[-1] = (row[-1][0], max(stop, sum(row[-1])) - row[-1][0])
        else:
            row.append((start, stop - start))
    return bars


def tracks(bars: Bars) -> list[str]:
    """The tracks from top to bottom."""

    def place(actor: str) -> tuple[int, str, int, str]:
        role, number = role_of(actor), actor.rpartition("-")[2]
        known = ROLES.index(role) if role in ROLES else len(ROLES)
        return known, role, int(number) if number.isdecimal() and len(number) < 10 else 0, actor

    return sorted(bars, key=place)


def end_of(spans: Sequence[Span]) -> LastSteps | None:
    """The last whole steps of a timeline; None without one."""
    steps, work = last_steps(spans)
    if not steps:
        return None
    begin, end = steps[0].begin, steps[-1].end
    scale = 100 / (end - begin)
    bars, busy = bars_of(work, begin, end), busy_seconds(work, begin, end)
    shown = tracks(bars)
    last = breakdown_of(steps[-1], work, {span.actor for span in work})
    return LastSteps(
        end - begin,
        [step.count for step in steps],
        [(round((step.begin - begin) * scale, 2), step.count) for step in steps],
        sorted({phase for track in bars.values() for phase in track}),
        [
            ActorTrack(
                actor,
                busy[actor] / (end - begin),
                [
                    (phase, round(start * scale, 2), max(0.1, round(seconds * scale, 2)))
                    for phase, several in bars[actor].items()
                    for start, seconds in several
                ],
                [
                    (round((link.begin - begin) * scale, 2), max(0.1, round((link.end - link.begin) * scale, 2)))
                    for link in last.path
                    if link.actor == actor
                ],
            )
            for actor in shown[:MOST_TRACKS]
        ],
        max(0, len(shown) - MOST_TRACKS),
        last,
    )
