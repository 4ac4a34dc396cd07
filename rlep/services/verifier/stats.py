"""Counters and a latency histogram, as plain values that can be added up over verifiers."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rlep.core.types import LATENCY_BOUNDS, STATUSES, Verdict

PATHS: tuple[str, ...] = ("fast", "full", "gate")


@dataclass(frozen=True, slots=True)
class GradingStats:
    """Counts of a verifier since it was made, e.g. ``by_status = {"correct": 31, "wrong": 96, ...}``."""

    by_status: dict[str, int]
    """Verdicts by status, every status present."""
    by_path: dict[str, int]
    """Verdicts by path: ``fast``, ``full``, ``gate``."""
    latency_counts: tuple[int, ...]
    """Verdicts by latency, ``[len(LATENCY_BOUNDS) + 1]``."""
    latency_seconds: float
    """Sum of all latencies, in seconds."""
    restarts: int
    """Worker processes that were replaced after a job ended them."""

    @property
    def total(self) -> int:
        """All verdicts."""
        return sum(self.latency_counts)


class StatsRecorder:
    """Collects verdicts into ``GradingStats``; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_status: dict[str, int] = dict.fromkeys(STATUSES, 0)
        self._by_path = dict.fromkeys(PATHS, 0)
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Count these verdicts."""
        with self._lock:
            for verdict in verdicts:
                self._by_status[verdict.status] += 1
                self._by_path[verdict.path] += 1
                self._counts[bisect_left(LATENCY_BOUNDS, verdict.seconds)] += 1
                self._seconds += verdict.seconds

    def snapshot(self, restarts: int) -> GradingStats:
        """The values now."""
        with self._lock:
            return GradingStats(
                dict(self._by_status), dict(self._by_path), tuple(self._counts), self._seconds, restarts
            )
