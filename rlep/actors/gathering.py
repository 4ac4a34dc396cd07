"""Fewer and larger lists from a stream whose every item costs its reader a round through Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

SHARE = 0.05
"""Part of the time since the stream began that an item may wait for others."""
LONGEST_S = 1.0
"""No item waits longer."""


async def gather_items(stream: AsyncGenerator[list[T]]) -> AsyncGenerator[list[T]]:
    """Yield the items of ``stream`` in their order; those that come soon after a list wait a little for more.

    The last list comes when the stream ends: a rollout is not longer by it.
    """
    clock = asyncio.get_running_loop().time
    began = given = clock()
    waiting: list[T] = []
    following: asyncio.Future[list[T] | None] | None = None
    ended = False
    async with aclosing(stream):
        try:
            while not ended:
                following = following or asyncio.ensure_future(anext(stream, None))
                due = given + min(LONGEST_S, SHARE * (clock() - began))
                await asyncio.wait({following}, timeout=max(0.0, due - clock()) if waiting else None)
                if following.done():
                    found, following = following.result(), None
                    ended = found is None
                    waiting += found or []
                if waiting and (ended or clock() >= due):
                    yield waiting
                    waiting, given = [], clock()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait({following})
