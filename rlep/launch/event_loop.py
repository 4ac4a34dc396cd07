"""The event loop of a command that starts actors: told to end, it closes them first."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[object, object, T], stopping: Callable[[], None]) -> T:
    """Run to the end; ``ending_signals`` cancel it, so that everything it started is closed. A second one is ignored.

    ``stopping`` is called once, when the first signal comes.
    """

    async def supervised() -> T:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                task.cancel()  # first: nobody may be left to read what ``stopping`` prints
                _leave_closed(terminals)
                stopping()

        for number in ending_signals():
            loop.add_signal_handler(number, stop)
        return await task

    return asyncio.run(supervised())


def interrupt_once() -> None:
    """Have ``ending_signals`` raise ``KeyboardInterrupt``, for a command without an event loop; a second one is ignored."""
    signals = ending_signals()

    def stop(*_: object) -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, stop)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Signals that end a command in order: Ctrl-C, SIGTERM, and SIGHUP of a closed terminal unless ``nohup`` has it ignored."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


def _leave_closed(terminals: list[int]) -> None:
    """Lead what was a terminal, and is closed, to ``/dev/null``: a line that cannot be printed must not cost the checkpoint."""
    for number in terminals:
        if not os.isatty(number):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            os.close(nothing)
