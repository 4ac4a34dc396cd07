"""A raylet that hangs ends the process, though its main thread stands still; one that answers does not."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

HUNG = """
import sys, time
from types import SimpleNamespace
import ray
from rlep.actors.node_watch import watched_node

ray.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "own")
ray.nodes = lambda: [
    {"NodeID": "other", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1},
    {"NodeID": "own", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": int(sys.argv[1])},
]
with watched_node(0.01):
    time.sleep(3600)  # as in a call that never returns
"""


@pytest.mark.fault(8, outcome="stopped", operator="one sentence after `cluster.head_deadline_s`; exit status 1")
def test_a_raylet_that_hangs_ends_a_process_that_stands_still() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes its connections
        port = silent.getsockname()[1]
        command = [sys.executable, "-c", HUNG, str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        f"error: Ray's node process (raylet) at 127.0.0.1:{port} has not answered for 0 s (cluster.head_deadline_s); "
        "the same command continues the run from its last checkpoint\n",
    )
