"""Watches over Ray's own processes: the head of the cluster, and the raylet of this node.

Without the head nothing can be placed, and Ray ends the driver after 60 s with its own words. Actors that run go on without
it, so there is time to write a checkpoint. A raylet that hangs would let the driver wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager

import ray

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


@contextmanager
def watch_node(deadline_s: float) -> Iterator[None]:
    """Within the block, end this process at once when its raylet has not answered for ``deadline_s`` seconds.

    It says so in one sentence, with exit status 1: a process whose calls do not return can put nothing in order. A thread
    watches: the event loop may stand still in such a call, as in ``ray.put``. Where the raylet ends, Ray ends the driver.
    """
    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    host, port, ended = str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]), threading.Event()
    threading.Thread(target=_watch, args=(host, port, deadline_s, ended), name="node-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(host: str, port: int, deadline_s: float, ended: threading.Event) -> None:
    known = False  # once it has answered: one that is out of reach from the start proves nothing
    away: float | None = None  # since the first attempt that failed: a machine that slept proves nothing
    while not ended.wait(min(POLL_S, deadline_s / 2)):
        begun = time.monotonic()
        there = answers(host, port)
        known = known or there
        away = None if there or not known else begun if away is None else away
        if away is not None and time.monotonic() - away >= deadline_s and not ended.is_set():
            said = (
                f"error: Ray's node process (raylet) at {host}:{port} has not answered for {deadline_s:.0f} s "
                "(cluster.head_deadline_s); the same command continues the run from its last checkpoint\n"
            )
            os.write(2, said.encode())
            os._exit(1)
