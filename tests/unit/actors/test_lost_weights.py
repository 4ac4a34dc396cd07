"""Generators that start again have no weights over gloo or NCCL: rollouts end where none that has any is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rlep.actors.generator_replica import GeneratorReplica
from rlep.actors.generators import GeneratorPool
from rlep.actors.timeline import Timeline
from rlep.config.settings import parse_config
from rlep.core.errors import ActorLost, WeightsLost
from rlep.core.types import Completion, Request, Sampling

pytestmark = pytest.mark.asyncio
REQUEST = Request("a/0", "a", np.array([1], dtype=np.int32), 0, seed=1)


def pool_of(*versions: int | None, transfer: str = "gloo") -> tuple[GeneratorPool, list[GeneratorReplica]]:
    """Generators that serve these versions."""
    cluster = SimpleNamespace(report=lambda *_: None, timeline=Timeline(), forget=lambda _: None)
    config = parse_config({"generator": {"transfer": transfer}})
    pool = GeneratorPool(cast(Any, cluster), config, Path("model"), lease_s=60)
    replicas = pool._replicas.create(len(versions))
    for replica, version in zip(replicas, versions, strict=True):
        replica.version, replica.state = version, "serving"
    return pool, replicas


async def answers(pool: GeneratorPool) -> list[Completion]:
    return [one async for one in pool.generate([REQUEST], Sampling(max_tokens=4), deadline_s=0.2)]


async def lost(pool: GeneratorPool, replica: GeneratorReplica) -> None:
    replica.error = ActorLost(f"{replica.name} died")
    replica.lost.set()
    await pool._retire(replica)


async def test_the_rollout_ends_with_the_last_that_has_weights_and_not_before() -> None:
    pool, (first, second, new) = pool_of(3, 3, None)
    rollout = asyncio.create_task(answers(pool))
    await asyncio.sleep(0)
    await lost(pool, first)
    assert not pool.weights.lost()
    await lost(pool, second)
    with pytest.raises(
        WeightsLost, match="no generator has the policy's weights any more: generator-0: generator-0 died"
    ):
        await rollout
    new.version = 4  # by the next publication
    with pytest.raises(TimeoutError):
        await answers(pool)


async def test_a_rollout_that_begins_without_any_ends_at_once() -> None:
    pool, _ = pool_of(None, None)
    with pytest.raises(WeightsLost):
        await answers(pool)


async def test_one_that_takes_part_in_a_transfer_is_waited_for() -> None:
    pool, (replica,) = pool_of(None)
    async with replica.loading:
        with pytest.raises(TimeoutError):
            await answers(pool)


async def test_the_last_with_weights_leaves_when_it_has_done_its_work() -> None:
    pool, (leaving, _) = pool_of(3, None)
    rollout = asyncio.create_task(answers(pool))
    await asyncio.sleep(0)
    await pool._leave(leaving, 0)
    with pytest.raises(WeightsLost):
        await rollout


async def test_through_shared_memory_one_that_starts_again_has_the_weights() -> None:
    pool, (replica,) = pool_of(3, transfer="shared_memory")
    rollout = asyncio.create_task(answers(pool))
    await asyncio.sleep(0)
    await lost(pool, replica)
    with pytest.raises(TimeoutError):
        await rollout


async def test_a_publication_for_which_no_generator_is_left_ends_at_once() -> None:
    pool, (replica,) = pool_of(3)
    replica.error = ActorLost("generator-0 died")
    replica.supervisor = asyncio.create_task(asyncio.sleep(0))
    await replica.supervisor
    with pytest.raises(ActorLost, match="no generator is left; generator-0: generator-0 died"):
        pool.weights.living()


async def test_what_a_stream_ends_without_is_given_out_again() -> None:
    pool, (replica,) = pool_of(3)
    job = pool._queue.put([REQUEST], Sampling())
    taken = pool._queue.take(replica.name, 1)
    assert taken is not None

    async def stream(*_: object) -> AsyncIterator[None]:
        for nothing in list[None]():
            yield nothing

    generate = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=stream))
    await pool._stream(replica, cast(Any, SimpleNamespace(generate=generate)), *taken)
    assert (pool._queue.leased(replica.name), pool._queue.waiting) == (0, 1)
    assert list(job.missing) == [REQUEST.id]
