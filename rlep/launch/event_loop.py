"""The event loop of a command that starts actors: told to end, it closes them first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[object, object, T], stopping: Callable[[], None]) -> T:
    """Run to the end; SIGINT and SIGTERM cancel it, so that everything it started is closed. A second one is ignored.

    ``stopping`` is called once, when the first signal comes.
    """

    async def supervised() -> T:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                task.cancel()  # first: nobody may be left to read what ``stopping`` prints
                stopping()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await task

    return asyncio.run(supervised())
