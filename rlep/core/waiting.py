"""Waits on tasks, and for what nobody tells of."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
