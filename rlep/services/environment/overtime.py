"""The clock of a call: an interrupt in the worker when it has computed or waited for too long."""

from __future__ import annotations

import math
import resource
import signal
import time
from types import FrameType
from typing import Self

from rlep.services.worker.jail import Limits

AGAIN_S = 0.2
"""A call that catches the interrupt gets another after this time, until its last CPU second."""
LAST_S = 2
"""CPU seconds beyond its own in which a call may heed an interrupt; then the kernel kills the process."""


class Overtime(BaseException):
    """A call took too long; no ``except Exception`` of the user's catches it."""


class CallClock:
    """``with`` it, a call is ended by ``Overtime`` after its CPU time or its time on the wall."""

    def __init__(self, limits: Limits) -> None:
        self._cpu, self._wall = limits.cpu_seconds, limits.wall_seconds
        self._seconds = self._cpu
        """CPU time of the call."""
        self._called: set[str] = set()
        self._running = False
        self._raised = -math.inf
        self.said = ""
        """The limit that was passed last."""

    def of(self, method: str) -> Self:
        """Clock a call of this method.

        The first in a process may compute as long as it may wait: it may build what later ones use.
        """
        self._seconds = self._cpu if method in self._called else max(self._cpu, self._wall)
        self._called.add(method)
        return self

    def __enter__(self) -> Self:
        used = resource.getrusage(resource.RUSAGE_SELF)
        last = math.ceil(used.ru_utime + used.ru_stime + self._seconds) + LAST_S
        resource.setrlimit(resource.RLIMIT_CPU, (last, resource.RLIM_INFINITY))
        for number in (signal.SIGPROF, signal.SIGALRM):  # each time: a call may have put its own handler there
            signal.signal(number, self._interrupt)
        self._running = True
        signal.setitimer(signal.ITIMER_REAL, self._wall, AGAIN_S)
        signal.setitimer(signal.ITIMER_PROF, self._seconds, AGAIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the call's time. An interrupt may come before the first line has had its effect, but not after."""
        self._running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        if self._running and time.monotonic() > self._raised + AGAIN_S / 2:  # both clocks may end at once
            self._raised = time.monotonic()
            what = f"{self._seconds:g} s of CPU time" if number == signal.SIGPROF else f"{self._wall:g} s"
            self.said = f"it took more than {what}"
            raise Overtime(self.said)
