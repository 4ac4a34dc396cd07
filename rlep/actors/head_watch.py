"""Whether Ray's head process is there. Without it nothing can be placed, and Ray ends the driver after 60 s with its own words.

Actors that run go on without it, so there is time to write a checkpoint.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from rlep.core.errors import HeadLost

POLL_S = 2.0
"""Between two attempts to reach it, and the longest that one attempt waits."""


async def watch_head(address: str, deadline_s: float) -> None:
    """Until nothing has listened at ``address`` (``host:port``) for ``deadline_s`` seconds. Raises ``HeadLost``."""
    host, _, port = address.rpartition(":")
    away: float | None = None  # since the first attempt that failed: an event loop that stood still proves nothing
    while away is None or time.monotonic() - away < deadline_s:
        await asyncio.sleep(min(POLL_S, deadline_s / 2))
        begun = time.monotonic()
        there = await asyncio.to_thread(_listens, host.strip("[]"), int(port))
        away = None if there else begun if away is None else away
    raise HeadLost(
        f"Ray's head process at {address} has not answered for {deadline_s:.0f} s (cluster.head_deadline_s); "
        "the same command continues the run"
    )


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=POLL_S):
            return True
    except OSError:
        return False


@asynccontextmanager
async def ended_by(watch: Awaitable[None]) -> AsyncIterator[None]:
    """Cancel the block when ``watch`` fails, and raise that failure in place of the cancellation."""
    block = asyncio.current_task()
    assert block is not None
    watching = asyncio.ensure_future(watch)
    watching.add_done_callback(lambda done: None if done.cancelled() else block.cancel())
    try:
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})
    except asyncio.CancelledError:
        if not watching.cancelled() and (failure := watching.exception()) is not None:
            block.uncancel()
            raise failure from None
        raise
