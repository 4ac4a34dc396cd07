"""The last steps as they went: one track for each actor, what it did when, and what the last step waited for."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.metrics.spans import DRIVER, Span, StepBreakdown, breakdown_of, role_of, steps_of
from rlep.view.record import RunRecord

STEPS = 3
"""Steps that are drawn."""
NARROWEST = 1 / 500
"""Gaps below this share of the picture are not drawn: a track has at most that many bars."""
ROLES = ("generator", "verifier", "pool", "failures", "learner")
"""Tracks from top to bottom."""
PHASE_OF = {
    "generate": "generate",
    "grade": "verify",
    "sample": "replay",
    "add": "replay",
    "score": "score",
    "update": "update",
    "publish": "publish",
    "load weights": "publish",
}
"""Name of a span → the part of a step whose colour it has; others have the rest's."""

Bars = dict[str, dict[str, list[tuple[float, float]]]]
"""Track → part of a step → (begin, seconds) of each bar."""


def last_steps(run: RunRecord | None) -> tuple[list[Span], list[Span]]:
    """The last whole steps in a run's timeline, and the spans of their time; both empty without one."""
    spans = run.spans if run else ()
    steps = steps_of(spans)[-STEPS:]
    if not steps:
        return [], []
    begin, end = steps[0].begin, steps[-1].end
    return steps, [span for span in spans if span.actor != DRIVER and span.end > begin and span.begin < end]


def last_breakdown(run: RunRecord) -> StepBreakdown | None:
    """Where the last whole step's time went; actors at work in the steps before it count as idle in it."""
    steps, spans = last_steps(run)
    return breakdown_of(steps[-1], spans, {span.actor for span in spans}) if steps else None


def bars_of(spans: Sequence[Span], begin: float, end: float) -> Bars:
    """What each track shows between ``begin`` and ``end``, from ``begin`` on; bars that nearly touch become one."""
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
        return known, role, int(number) if number.isdigit() else 0, actor

    return sorted(bars, key=place)
