"""Items that come soon after one another are given together, in order, and the last at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from rlep.actors import gathering
from rlep.actors.gathering import gather_items


class Source:
    """A stream that gives what is put into it; None ends it."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self.closed = False

    async def stream(self) -> AsyncGenerator[list[int]]:
        try:
            while (item := await self.items.get()) is not None:
                yield item
        finally:
            self.closed = True


async def test_what_is_there_when_the_stream_ends_is_given_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SHARE", 1e9)  # only the end of the stream ends a wait
    monkeypatch.setattr(gathering, "LONGEST_S", 1e9)
    source = Source()
    for item in ([1], [2, 3], [], [4], None):
        source.items.put_nowait(item)
    assert [part async for part in gather_items(source.stream())] == [[1, 2, 3, 4]]
    assert source.closed


async def test_without_a_wait_each_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SHARE", 0.0)
    source = Source()
    parts = gather_items(source.stream())
    for item in ([1], [2, 3], [4]):
        source.items.put_nowait(item)
        assert await anext(parts) == item
    await parts.aclose()
    assert source.closed


async def test_a_reader_that_leaves_ends_the_stream_that_is_waited_for() -> None:
    source = Source()
    parts = gather_items(source.stream())
    source.items.put_nowait([1])
    assert await anext(parts) == [1]
    waiting = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert source.closed


async def test_the_streams_error_is_raised() -> None:
    async def failing() -> AsyncGenerator[list[int]]:
        yield [1]
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        async for _ in gather_items(failing()):
            pass
