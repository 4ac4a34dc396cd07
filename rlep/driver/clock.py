"""Seconds of a step, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    """Phases that have begun, finished or not."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``name``."""
        self.begun.add(name)
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun
