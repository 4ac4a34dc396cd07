"""Watch over Ray's head process. Without it nothing can be placed, and Ray ends the driver after 60 s with its own words.

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
"""Between two attempts to reach it."""
ANSWER_S = 5.0
"""The longest that one attempt waits, for the connection and for the answer."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes of every client of HTTP/2, gRPC's too: the preface and empty settings (RFC 9113, 3.4)."""


async def watch_head(address: str, deadline_s: float) -> None:
    """Wait until nothing has answered at ``address`` (``host:port``) for ``deadline_s`` seconds. Raises ``HeadLost``."""
    host, _, port = address.rpartition(":")
    away: float | None = None  # since the first attempt that failed: an event loop that stood still proves nothing
    while away is None or time.monotonic() - away < deadline_s:
        await asyncio.sleep(min(POLL_S, deadline_s / 2))
        begun = time.monotonic()
        there = await asyncio.to_thread(answers, host.strip("[]"), int(port))
        away = None if there else begun if away is None else away
    raise HeadLost(
        f"Ray's head process at {address} has not answered for {deadline_s:.0f} s (cluster.head_deadline_s); "
        "the same command continues the run"
    )


def answers(host: str, port: int) -> bool:
    """Return True when what listens there reacts: a process that hangs has its connections taken by the kernel, and says nothing.

    With TLS it closes the connection, which is an answer too.
    """
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            connection.sendall(HELLO)
            connection.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True


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
