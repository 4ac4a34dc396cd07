"""A head that is gone for too long ends the block, a raylet that hangs ends the process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from rlep.actors import ray_watch
from rlep.actors.ray_watch import ended_by, watch_head
from rlep.core.errors import HeadLost
from rlep.engines.rendezvous import listen


def port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


async def test_a_head_that_is_gone_ends_the_block_with_its_address_after_it_has_put_things_in_order() -> None:
    with listen("127.0.0.1") as listening:
        port = port_of(listening)
    saved: list[str] = []

    async def block() -> None:
        async with ended_by(watch_head(f"127.0.0.1:{port}", 0.01)):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                saved.append("checkpoint")
                raise

    with pytest.raises(HeadLost, match=rf"Ray's head process at 127\.0\.0\.1:{port} has not answered for 0 s"):
        await block()
    assert saved == ["checkpoint"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_head_that_is_there_ends_nothing_and_the_watch_ends_with_the_block() -> None:
    with listen("127.0.0.1") as listening:
        watch = asyncio.create_task(watch_head(f"127.0.0.1:{port_of(listening)}", 0.01))
        async with ended_by(watch):
            for _ in range(3):  # each connection is an attempt of the watch
                attempt, _ = await asyncio.to_thread(listening.accept)
                attempt.close()
        assert watch.cancelled()


@pytest.mark.slow
async def test_a_head_that_hangs_is_gone_though_the_kernel_takes_its_connections() -> None:
    hangs = pytest.raises(HeadLost, match="has not answered for 0 s")
    with listen("127.0.0.1") as listening, hangs:  # nobody accepts
        await watch_head(f"127.0.0.1:{port_of(listening)}", 0.01)


async def test_who_cancels_the_block_himself_is_not_told_of_a_head() -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with ended_by(asyncio.Event().wait()):  # type: ignore[arg-type]
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


STANDS_STILL = """
import sys, time
from types import SimpleNamespace
import ray
from rlep.actors.ray_watch import watch_node

ray.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "own")
ray.nodes = lambda: [
    {"NodeID": "other", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1},
    {"NodeID": "own", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": int(sys.argv[1])},
]
with watch_node(float(sys.argv[2])):
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

    monkeypatch.setattr(ray_watch, "answers", out_of_reach)
    ray_watch._watch("10.0.0.1", 7, 1e-9, ended)
    assert asked == [7] * 5
