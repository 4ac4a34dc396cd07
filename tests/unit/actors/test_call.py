"""The result of an actor call under a deadline."""

from __future__ import annotations

import asyncio

import pytest

from rlep.actors.cluster import call
from rlep.core.errors import DeadlineExceeded

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("rounds", range(5))
async def test_a_call_that_is_cancelled_as_its_answer_comes_ends(rounds: int) -> None:
    answer = asyncio.get_running_loop().create_future()
    calling = asyncio.create_task(call(answer, "generator-0.health", 60))
    await asyncio.sleep(0.01)
    answer.set_result(1)
    for _ in range(rounds):  # of the event loop, from the answer to the caller
        await asyncio.sleep(0)
    cancelled = calling.cancel()
    assert cancelled or rounds > 2
    await asyncio.wait({calling})
    assert calling.cancelled() == cancelled


async def test_a_call_without_an_answer_names_what_was_called() -> None:
    with pytest.raises(DeadlineExceeded, match=r"^generator-0\.health did not answer within 0 s$"):
        await call(asyncio.get_running_loop().create_future(), "generator-0.health", 0.01)
