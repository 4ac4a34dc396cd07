"""A call that comes again is the same call: carried out once, with one result for all."""

from __future__ import annotations

import asyncio

import pytest

from rlep.actors.once import Once
from rlep.core.errors import ModelError


class Work:
    """Counts how often it was done; done when it is allowed to be."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        await self.may_end.wait()
        return self.begun


async def test_a_call_that_comes_again_while_it_runs_and_after_it_is_carried_out_once() -> None:
    once, work = Once(), Work()
    first, again = (asyncio.create_task(once(7, work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()  # Ray gives up the first when its connection is lost
    work.may_end.set()
    assert await again == 1
    assert await once(7, work) == 1
    assert await once(8, work) == 2


async def test_a_call_that_failed_fails_again_in_the_same_way() -> None:
    tries: list[int] = []

    async def fails() -> None:
        tries.append(1)
        raise ModelError("no weights")

    once = Once()
    for _ in range(2):
        with pytest.raises(ModelError, match="no weights"):
            await once(0, fails)
    assert len(tries) == 1
