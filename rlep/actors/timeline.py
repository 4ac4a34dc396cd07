"""Who did what, and when: spans of the last steps as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MOST_SPANS = 50_000
"""The oldest go first; a step of 8 generators has some hundred."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work; times in seconds since the epoch."""

    actor: str
    what: str
    begin: float
    end: float
    count: int = 0
    """Requests or answers in it."""


class Timeline:
    """The newest spans."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)

    @contextmanager
    def span(self, actor: str, what: str, count: int = 0) -> Iterator[None]:
        """Record the block, however it ends."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(actor, what, begin, count)

    def add(self, actor: str, what: str, begin: float, count: int = 0) -> None:
        """Record what began at ``begin`` and ends now."""
        self._spans.append(Span(actor, what, begin, self._clock(), count))

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is recorded, in the order in which it ended."""
        return tuple(self._spans)


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


def write_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write ``chrome_trace`` as a file that appears whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(chrome_trace(spans)))
    part.replace(path)


def busy_shares(spans: Sequence[Span]) -> dict[str, float]:
    """Actor → share of the whole time, from the first begin to the last end, in which it had work."""
    if not spans:
        return {}
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    busy: dict[str, float] = {}
    until: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        begin = max(span.begin, until.get(span.actor, span.begin))
        busy[span.actor] = busy.get(span.actor, 0.0) + max(0.0, span.end - begin)
        until[span.actor] = max(span.end, begin)
    return {actor: seconds / whole if whole else 0.0 for actor, seconds in sorted(busy.items())}
