"""Waits on tasks, and for what nobody tells of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar

from rlep.core.errors import RlepError

T = TypeVar("T", bound="asyncio.Future[Any]")


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
