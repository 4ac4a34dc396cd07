"""Whether Ray's process on this node, the raylet, answers. A call to one that hangs, as ``ray.put`` is, never returns.

So a thread watches it: the event loop may stand still in such a call. Where the raylet is gone, Ray itself ends this process.
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
    """Within the block, a raylet that has not answered for ``deadline_s`` seconds ends this process at once.

    It says so in one sentence, with exit status 1: a process whose calls do not return can put nothing in order.
    """
    own = ray.get_runtime_context().get_node_id()
    node = next(one for one in ray.nodes() if one["NodeID"] == own)
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
