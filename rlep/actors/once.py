"""A call that Ray makes again, because a message of it was lost, is carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rlep.core.waiting import silence


class Once:
    """The last numbered call of an actor; numbers are the caller's, and only its last call can come again."""

    def __init__(self) -> None:
        self._number = -1
        self._result: asyncio.Future[Any]

    async def __call__(self, number: int, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of ``work``, or of the work that was begun under this ``number`` before."""
        return await asyncio.shield(self.begin(number, work))

    def begin(self, number: int, work: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Begin ``work``, unless it was begun under this ``number`` before; not to be cancelled."""
        if number != self._number:
            self._number, self._result = number, silence(asyncio.ensure_future(work()))  # nobody may ask again
        return self._result
