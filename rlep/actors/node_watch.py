"""Deadline for Ray's process on this node, the raylet: one that hangs would let the driver wait for ever.

A thread watches it: the event loop may stand still in a call to one that hangs, as ``ray.put`` does, which never returns.
Where the raylet ends, Ray itself ends the driver within a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rlep.actors.head_watch import POLL_S, answers


@contextmanager
def watched_node(deadline_s: float) -> Iterator[None]:
    """Within the block, end this process at once when its raylet has not answered for ``deadline_s`` seconds.

    It says so in one sentence, with exit status 1: a process whose calls do not return can put nothing in order.
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
    known = False  # once it has answered: by Ray's client (``ray://``) it may be out of reach
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
