"""How a command that starts actors is told to end."""

import asyncio
import os
import signal

import pytest

from rlep.launch.event_loop import run_async


def test_a_signal_ends_the_command_although_its_last_words_cannot_be_written() -> None:
    closed: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 20)
        finally:
            closed.append("actors")

    def stopping() -> None:
        raise BrokenPipeError  # standard error was a pipe, and its reader has ended

    with pytest.raises(asyncio.CancelledError):
        run_async(work(), stopping)
    assert closed == ["actors"]
