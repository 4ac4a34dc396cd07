"""The pools that a run opens."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from rlep.actors.cluster import Cluster
from rlep.launch.roles import RunActors
from tests.unit.driver.driver_values import config_of


@pytest.mark.parametrize(("source", "options"), [("offline", {"minimum": 2}), ("both", {"minimum": 1})])
def test_the_minimum_is_of_a_question_s_stored_and_own_responses_together(
    monkeypatch: pytest.MonkeyPatch, source: str, options: dict[str, int]
) -> None:
    """With ``both``, live replay joins the two before it counts: one of each are two."""
    opened: list[Any] = []
    monkeypatch.setattr(RunActors, "_pool", lambda _, name, inputs, given=None, **__: opened.append(given))
    actors = RunActors(config_of(replay={"source": source, "minimum": 2}), cast(Cluster, None))
    actors.pool(cast(Any, None), read_only=True)
    actors.pool(cast(Any, None), read_only=False)  # a collection's is the pool's own
    assert opened == [options, None]


JOINING = """
import sys
from rlep.config.settings import load_config
from rlep.launch.event_loop import run_async
from rlep.launch.roles import run_actors

async def join():
    async with run_actors(load_config([], [f'cluster.address="127.0.0.1:{sys.argv[1]}"', f'run.directory="{sys.argv[2]}"'])):
        raise AssertionError("joined")

run_async(join(), lambda: print("stopping"))
"""


def test_a_signal_ends_the_wait_for_a_cluster_that_takes_connections_and_says_nothing(tmp_path: Path) -> None:
    """Ray would try for a minute and more; the thread that waits for it cannot be stopped."""
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(120)
        arguments = [sys.executable, "-c", JOINING, str(server.getsockname()[1]), str(tmp_path / "run")]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
            for _ in range(2):  # the look whether anybody answers, and Ray's own
                held.enter_context(server.accept()[0])
            command.send_signal(signal.SIGTERM)
            try:
                said, errors = command.communicate(timeout=30)  # Ray's own deadlines are longer together
            finally:
                command.kill()
    assert said == "stopping\n"
    assert errors.rstrip().endswith("CancelledError")
