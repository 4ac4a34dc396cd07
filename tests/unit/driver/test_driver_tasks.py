"""Tasks that end together, and items that a task produces in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rlep.driver.tasks import Produced, together


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def failing(error: Exception) -> None:
    raise error


async def nested(error: Exception, ended: list[str], *, inside: bool) -> None:
    """A group in a group; the inner one fails in its body or in a task."""
    async with together() as outer:
        outer.create_task(forever(ended, "first"))
        await asyncio.sleep(0)
        async with together() as inner:
            inner.create_task(forever(ended, "second"))
            await asyncio.sleep(0)
            if inside:
                raise error
            inner.create_task(failing(error))


@pytest.mark.parametrize("inside", [False, True], ids=["task", "body"])
async def test_the_first_error_ends_the_rest_and_is_raised_as_itself(inside: bool) -> None:
    error = KeyError("lost")
    ended: list[str] = []
    with pytest.raises(KeyError) as raised:
        await nested(error, ended, inside=inside)
    assert raised.value is error
    assert ended == ["second", "first"]


async def test_produced_items_come_in_order_before_the_error_that_ended_them() -> None:
    done = asyncio.Event()

    async def produce(put: Callable[[int], None]) -> None:
        put(1)
        put(2)
        done.set()
        raise KeyError("lost")

    produced = Produced(produce)
    await done.wait()  # it runs before anybody asks
    assert [await anext(produced), await anext(produced)] == [1, 2]
    with pytest.raises(KeyError, match="lost"):
        await anext(produced)


async def test_closing_ends_the_task_and_discards_the_rest() -> None:
    ended: list[str] = []
    produced = Produced[int](lambda put: forever(ended, "produce"))
    await asyncio.sleep(0)
    await produced.aclose()
    assert ended == ["produce"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
