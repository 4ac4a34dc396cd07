"""Open calls of a pool server: how many each token has, and an end for those whose client neither sends nor reads.

gRPC's server gives a call one of its threads until the client has sent its request and taken the frames of the reply, and keeps
a reply in memory until it is taken. The time that a call spends waiting for its client is therefore bounded: ``SILENCE_S``, and
a second more for every ``BYTES_A_SECOND`` that went either way. Time that the server itself takes does not count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SILENCE_S = 20.0
"""Seconds that a call may wait for its client, beside the time that its bytes take."""
BYTES_A_SECOND = 1 << 16
"""Slowest client that may send and read for as long as it needs to."""
CALLS_A_TOKEN = 32
"""Most calls of one token at a time; its clients try again."""
_LOOK_EVERY_S = 0.5

_log = logging.getLogger(__name__)


class OpenCall:
    """One admitted call and how long it has waited for its client."""

    def __init__(self, context: Any, name: str) -> None:
        self.context, self.name = context, name
        """``grpc.ServicerContext``, and caller and method for the log."""
        self.due: float | None = None
        """When the present wait ends the call; None while the server works."""
        self._left = SILENCE_S

    def wait(self, size: int = 0) -> None:
        """Begin to wait for the client, to which ``size`` bytes are sent."""
        self._left += size / BYTES_A_SECOND
        self.due = time.monotonic() + self._left

    @contextmanager
    def waiting(self, size: int = 0) -> Iterator[None]:
        """Wait for the client inside the block."""
        start = time.monotonic()
        self.wait(size)
        try:
            yield
        finally:
            self.due = None
            self._left -= time.monotonic() - start

    def arrived(self, size: int) -> None:
        """Count ``size`` bytes that the client has sent."""
        self._left += size / BYTES_A_SECOND


class OpenCalls:
    """All open calls of a server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[OpenCall] = set()
        self._of_caller: Counter[str] = Counter()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._end_silent, name="pool-silent", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """End the thread; the server has stopped."""
        self._closed.set()
        self._watch.join()

    def open(self, context: Any, caller: str, method: str, most: int | None) -> OpenCall | None:
        """Count a call until it has ended; None where its caller has ``most`` calls already."""
        with self._lock:
            if most is not None and self._of_caller[caller] >= most:
                return None
            call = OpenCall(context, f"{method} of {caller}")
            self._calls.add(call)
            self._of_caller[caller] += 1
        if not context.add_callback(lambda: self._ended(call, caller)):
            self._ended(call, caller)
        return call

    def _ended(self, call: OpenCall, caller: str) -> None:
        with self._lock:
            self._calls.discard(call)
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]

    def _end_silent(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            with self._lock:
                silent = [call for call in self._calls if call.due is not None and call.due < now]
            for call in silent:
                call.due = None  # said once
                _log.warning("%s ended: its client neither sent nor read in time (%g s)", call.name, SILENCE_S)
                call.context.cancel()
