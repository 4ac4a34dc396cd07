"""A head that is gone for too long ends the block; one that is back in time, or a block that ends before, does not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rlep.actors.head_watch import ended_by, watch_head
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
