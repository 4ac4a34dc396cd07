"""Waiting for what happens, not for time to pass: a slow machine waits longer and asserts the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable

DEADLINE_S = 240.0
"""Far above what any event takes on a loaded machine, and below every folder's time limit for one test."""
POLL_S = 0.02


def wait_until(condition: Callable[[], object], what: str, deadline: float = DEADLINE_S) -> None:
    """Poll until ``condition`` is true; ``AssertionError`` names ``what`` after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited {deadline:g} s for {what}"
        time.sleep(POLL_S)


async def until(
    condition: Callable[[], object | Awaitable[object]], what: str, deadline: float = DEADLINE_S, poll: float = POLL_S
) -> None:
    """``wait_until`` on an event loop; ``condition`` may be a coroutine function, which ``deadline`` cancels."""
    try:
        async with asyncio.timeout(deadline):
            while not (await found if isawaitable(found := condition()) else found):  # noqa: ASYNC110 - the one place
                await asyncio.sleep(poll)
    except TimeoutError as error:
        raise AssertionError(f"waited {deadline:g} s for {what}") from error


class Gate:
    """Holds the threads that ``pass_through`` until the test opens it."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        """Say that somebody is here, and wait until the gate is open."""
        self._reached.set()
        assert self._opened.wait(DEADLINE_S), f"the gate stayed closed for {DEADLINE_S:g} s"

    def wait_for_somebody(self) -> None:
        """Wait until somebody stands at the gate, or has passed it."""
        assert self._reached.wait(DEADLINE_S), f"nobody came to the gate within {DEADLINE_S:g} s"

    def open(self) -> None:
        """Let all through, now and later."""
        self._opened.set()


@contextmanager
def gate() -> Iterator[Gate]:
    """A closed gate, which the end of the block opens, so that a test that fails leaves no thread waiting."""
    made = Gate()
    try:
        yield made
    finally:
        made.open()
