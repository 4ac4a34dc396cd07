"""How a command that starts actors is told to end."""

import asyncio
import os
import signal

import pytest

from rlep.launch.event_loop import ending_signals, run_async


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_although_its_last_words_cannot_be_written(number: signal.Signals) -> None:
    closed: list[str] = []
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 20)
        finally:
            closed.append("actors")

    def stopping() -> None:
        raise BrokenPipeError  # standard error was a pipe, and its reader has ended

    try:
        with pytest.raises(asyncio.CancelledError):
            run_async(work(), stopping)
    finally:
        signal.signal(number, before)
    assert closed == ["actors"]


def test_a_hangup_that_nohup_has_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM}

        async def work() -> str:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)  # one round of the loop, in which a handler would have run
            return "done"

        assert run_async(work(), lambda: None) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)
