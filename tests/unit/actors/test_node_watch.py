"""A raylet that hangs ends the process, though its main thread stands still; one that was never reached does not."""

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


@pytest.mark.slow
def test_a_raylet_that_hangs_ends_a_process_that_stands_still() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        command = [sys.executable, "-c", STANDS_STILL, str(port), "0.01"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            raylet.settimeout(240)
            with raylet.accept()[0] as first:
                first.send(b"!")  # an answer; from now on only the kernel takes connections
                assert watching.wait(240) == 1
            assert watching.communicate() == (
                "",
                f"error: Ray's node process (raylet) at 127.0.0.1:{port} has not answered for 0 s (cluster.head_deadline_s); "
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
