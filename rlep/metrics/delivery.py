"""Metrics on their way to a tracker, beside the run: one that raises, hangs or is slow costs its own values and no time."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping

from rlep.metrics.catalogue import Tracker

STEPS = 256
"""Steps that may wait for a tracker; further ones are dropped."""
CLOSE_S = 60.0
"""Longest wait, at the end of a run, for a tracker to take what waits and to close."""
_log = logging.getLogger(__name__)


class Delivery:
    """One tracker and a thread of its own, which ends with the process where the tracker hangs."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._name = tracker, type(tracker).__name__
        self._waiting: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(STEPS)
        self._refused = self._late = 0
        self._failed = False
        self._thread = threading.Thread(target=self._deliver, name="tracker", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Steps so far that the tracker refused, or that did not wait for it any more."""
        return self._refused + self._late

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over finite numbers of one step; returns at once."""
        try:
            self._waiting.put_nowait((step, metrics))
        except queue.Full:
            if not self._late:
                _log.warning("%s has %d steps to take: step %d is the first it does not get", self._name, STEPS, step)
            self._late += 1

    def close(self, *, failed: bool = False) -> None:
        """Wait until the tracker has taken what waits and has closed, ``CLOSE_S`` at most; ``failed``: the run broke off."""
        self._failed = failed
        until = time.monotonic() + CLOSE_S
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            _log.warning("%s had not taken the last steps after %g s; metrics.jsonl has them", self._name, CLOSE_S)

    def _deliver(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._tracker.log(*item)
            except Exception as error:  # noqa: BLE001 - no tracker is worth a run
                if not self._refused:
                    _log.warning("%s refused step %d: %s: %s", self._name, item[0], type(error).__name__, error)
                self._refused += 1
        try:
            self._tracker.close(failed=self._failed)
        except Exception as error:  # noqa: BLE001
            _log.warning("%s could not be closed: %s: %s", self._name, type(error).__name__, error)
