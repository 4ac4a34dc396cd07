"""A raylet that hangs or is gone ends the process, though its main thread stands still; one that was never reached does not."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from rlep.actors import node_watch

STANDS_STILL = """
import sys, time
from types import SimpleNamespace
import ray
from rlep.actors.node_watch import watched_node

ray.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "own")
ray.nodes = lambda: [
    {"NodeID": "other", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1},
    {"NodeID": "own", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": int(sys.argv[1])},
]
with watched_node(float(sys.argv[2])):
    time.sleep(3600)  # as in a call that never returns
"""


def ended_with(raylet: socket.socket, deadline: str, *, gone: bool) -> tuple[int, str, str]:
    """Exit status and output of a process that watches this, which answers once, and then hangs or is gone."""
    command = [sys.executable, "-c", STANDS_STILL, str(raylet.getsockname()[1]), deadline]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        raylet.settimeout(240)
        with raylet.accept()[0] as one, raylet.accept()[0] as other:  # of both threads
            one.send(b"!")
            other.send(b"!")  # an answer; from now on only the kernel takes connections
            if gone:
                raylet.close()
            else:
                watching.wait(240)
        return watching.wait(240), *watching.communicate()


@pytest.mark.slow
def test_a_raylet_that_hangs_ends_a_process_that_stands_still() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        assert ended_with(raylet, "0.01", gone=False) == (
            1,
            "",
            f"error: Ray's node process (raylet) at 127.0.0.1:{port} has not answered for 0 s (cluster.head_deadline_s); "
            "the same command continues the run from its last checkpoint\n",
        )


@pytest.mark.slow
def test_a_raylet_that_is_gone_ends_it_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        assert ended_with(raylet, "3600", gone=True) == (
            1,
            "",
            f"error: Ray's node process (raylet) at 127.0.0.1:{port} is gone; "
            "the same command continues the run from its last checkpoint\n",
        )


def test_a_raylet_that_never_answered_is_out_of_reach_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ended = threading.Event()

    def out_of_reach(_host: str, port: int) -> bool:
        asked.append(port)
        if len(asked) == 5:
            ended.set()
        return False

    monkeypatch.setattr(node_watch, "answers", out_of_reach)
    node_watch._watch("10.0.0.1", 7, 1e-9, ended)
    assert asked == [7] * 5
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    node_watch._hold("127.0.0.1", port, threading.Event())  # returns


def test_a_raylet_that_hangs_up_is_asked_less_and_less_often() -> None:
    class Seven(threading.Event):
        """Set by the seventh wait."""

        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return len(pauses) == 7

    pauses: list[float | None] = []
    with socket.create_server(("127.0.0.1", 0)) as raylet:

        def hang_up() -> None:
            for _ in range(6):
                raylet.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        node_watch._hold("127.0.0.1", raylet.getsockname()[1], Seven())
        hanging_up.join(240)
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
