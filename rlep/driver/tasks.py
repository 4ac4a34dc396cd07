"""Structured concurrency: tasks that end together, and a stream that a task produces in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a task group whose first error cancels the rest and is raised as itself, not inside an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Produced(Generic[T]):
    """Items from a task that runs from now on, kept in memory until they are taken; its user calls ``aclose`` in any case.

    After the last item, iteration raises what the task raised.
    """

    def __init__(self, produce: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> None:
        """``produce`` is given the function that hands over an item."""
        self._items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(produce))

    async def _run(self, produce: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> None:
        try:
            await produce(lambda item: self._items.put_nowait((item,)))
        finally:
            self._items.put_nowait(None)

    def __aiter__(self) -> Produced[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._items.get()
        if item is not None:
            return item[0]
        await self._task
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the task and wait for its end; its items and its error are discarded."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
