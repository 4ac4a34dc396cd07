"""The newest spans of a run, and the file that https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rlep.core.files import write_whole
from rlep.metrics.spans import DRIVER, STEP, Span, StepBreakdown, breakdown_of, chrome_trace

MOST_SPANS = 50_000
"""The oldest go first; a step of 8 generators has some hundred."""
WRITTEN_S, WRITTEN_SPANS = 30.0, 5_000
"""Seconds between two writes of a running run's newest spans, and their number: 50 ms of work."""


class Timeline:
    """The newest spans."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._step: Span | None = None
        self._breakdown: StepBreakdown | None = None

    @contextmanager
    def span(self, actor: str, what: str, count: int = 0) -> Iterator[None]:
        """Record the block, however it ends."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(actor, what, begin, count)

    def now(self) -> float:
        """Return the time of its clock."""
        return self._clock()

    def add_step(self, number: int, begin: float) -> None:
        """Record a whole step that began at ``begin`` and ends now."""
        self.add(DRIVER, STEP, begin, number)
        self._step, self._breakdown = self._spans[-1], None

    def add(self, actor: str, what: str, begin: float, count: int = 0) -> None:
        """Record what began at ``begin`` and ends now."""
        self._spans.append(Span(actor, what, begin, self._clock(), count))

    @property
    def spans(self) -> tuple[Span, ...]:
        """Recorded spans, in the order in which they ended."""
        return tuple(self._spans)

    def last_step(self, actors: Collection[str] = ()) -> StepBreakdown | None:
        """Return the last whole step's time by what it was spent on, worked out when it is first asked for."""
        step = self._step
        if self._breakdown is None and step is not None:
            newest = itertools.takewhile(lambda span: span.end > step.begin, reversed(self._spans))
            self._breakdown = breakdown_of(step, newest, actors)
        return self._breakdown


def write_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write ``chrome_trace`` as a file that appears whole."""
    write_whole(path, json.dumps(chrome_trace(spans)))


async def keep_trace(path: Path, timeline: Timeline, seconds: float = WRITTEN_S) -> None:
    """Write the newest spans now and then, until cancelled; a disk that takes no file ends nothing."""
    while True:
        await asyncio.sleep(seconds)
        with suppress(OSError):
            write_trace(path, timeline.spans[-WRITTEN_SPANS:])
