"""Waits on tasks, and for what nobody tells of."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import isawaitable
from typing import Any, TypeVar

from rlep.core.errors import RlepError

T = TypeVar("T", bound="asyncio.Future[Any]")
WATCH_S = 0.5
"""Seconds between two looks at the deadlines of ``raising_after``."""


def silence(task: T) -> T:
    """Return a task whose error may go unlooked at: asyncio would print it, though whoever awaits the task has it."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def until(
    holds: Callable[[], object | Awaitable[object]], late: RlepError, *, deadline_s: float, poll_s: float
) -> None:
    """Look every ``poll_s`` seconds until ``holds`` returns something true; raise ``late`` after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while not (await found if isawaitable(found := holds()) else found):
        if time.monotonic() > end:
            raise late
        await asyncio.sleep(poll_s)


async def in_daemon_thread(function: Callable[[], None]) -> None:
    """Call ``function`` in a thread that neither the event loop nor the end of the process waits for."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if ended.cancelled():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def call() -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody awaits it any more
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=call, name=function.__qualname__, daemon=True).start()
    await ended


class TooLate(BaseException):
    """Raised in a computation whose time is up; no handler of ``Exception`` within it catches it."""


class _Watchdog:
    """One thread for all computations with a deadline: a timer for each would cost more than a rendered prompt."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, seconds: float) -> None:
        with self._lock:
            self._ends[threading.get_ident()] = time.monotonic() + seconds
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._thread.start()

    def end(self) -> None:
        with self._lock:
            self._ends.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                now = time.monotonic()
                for thread in [thread for thread, end in self._ends.items() if now > end]:
                    del self._ends[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLate))


_watchdog = _Watchdog()


@contextmanager
def raising_after(seconds: float) -> Iterator[None]:
    """Raise ``TooLate`` in the block when it takes longer, between two steps of Python; in any thread, without a signal.

    Blocks are not nested.
    """
    _watchdog.begin(seconds)
    try:
        yield
    finally:
        _watchdog.end()
