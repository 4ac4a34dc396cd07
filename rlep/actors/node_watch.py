"""Whether Ray's process on this node, the raylet, is there and answers.

Threads watch it: the event loop may stand still in a call to one that hangs, as ``ray.put`` does, which never returns.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rlep.actors.head_watch import ANSWER_S, HELLO, POLL_S, answers

AGAIN_S = 0.1
"""Before the next connection, after one that was held; twice as long each time where none is (TLS), up to ``POLL_S``."""


@contextmanager
def watched_node(deadline_s: float) -> Iterator[None]:
    """Within the block, a raylet that is gone, or has not answered for ``deadline_s`` seconds, ends this process at once.

    It says so in one sentence, with exit status 1: a process whose calls do not return can put nothing in order, and where the
    raylet is gone Ray itself would end it within a second, with the last lines of its log.
    """
    own = ray.get_runtime_context().get_node_id()
    node = next(one for one in ray.nodes() if one["NodeID"] == own)
    host, port, ended = str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]), threading.Event()
    threading.Thread(target=_watch, args=(host, port, deadline_s, ended), name="node-watch", daemon=True).start()
    threading.Thread(target=_hold, args=(host, port, ended), name="node-hold", daemon=True).start()
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
            _end(host, port, f"has not answered for {deadline_s:.0f} s (cluster.head_deadline_s)")


def _hold(host: str, port: int, ended: threading.Event) -> None:
    """Keep a connection to it: the kernel closes that with the process, and then refuses another."""
    known, pause = False, 0.0
    while not ended.wait(pause):
        begun = time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=ANSWER_S) as held:
                known = True
                # Until it is closed: by the process, by its end, or as a client that says nothing more.
                held.settimeout(None)
                held.sendall(HELLO)
                while held.recv(4096):
                    pass
        except ConnectionRefusedError:
            if known and not ended.is_set():
                _end(host, port, "is gone")
            return
        except OSError:  # reset, or out of reach for now
            pass
        pause = AGAIN_S if time.monotonic() - begun > POLL_S else min(max(2 * pause, AGAIN_S), POLL_S)


def _end(host: str, port: int, what: str) -> None:
    said = (
        f"error: Ray's node process (raylet) at {host}:{port} {what}; "
        "the same command continues the run from its last checkpoint\n"
    )
    os.write(2, said.encode())
    os._exit(1)
