"""Generators on the devices of the learner's ranks: one room, in which each bundle holds a generator and its ranks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import ray

from rlep.actors.cluster import Cluster, call
from rlep.actors.placement import BundleSlot, Room
from rlep.config.roles import ActorConfig, GeneratorConfig, LearnerConfig
from rlep.core.errors import ActorLost

ROOM = "colocated"
ASK_S = 60.0
GUEST = ActorConfig(cpus=0)
"""What a generator asks of its bundle: nothing, because the ranks, which rest while it works, have all of it."""


class Colocated:
    """Who sits where, and when generators may start."""

    def __init__(
        self,
        cluster: Cluster,
        generator: GeneratorConfig,
        learner: LearnerConfig,
        turn: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """``turn``: a block in which the devices are the generators'."""
        self._cluster, self._turn = cluster, turn
        self._width, self._count = generator.tensor_parallel, generator.count
        self._bundle = ActorConfig(
            cpus=max(generator.cpus, learner.cpus * self._width),  # they never work at the same time
            gpus=learner.gpus * self._width,
            label_selector=learner.label_selector,
        )
        self._gpus = learner.gpus > 0
        self.learner_up = asyncio.Event()
        """Set once all ranks have started: only then can they say which devices they have."""

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None]:
        """A generator starts within the block, when the devices are the generators'."""
        await self.learner_up.wait()  # or until the learner's own deadline ends the start of the run
        async with self._turn():
            yield

    def seat_of_rank(self, rank: int) -> BundleSlot:
        """Where a rank sits."""
        return BundleSlot(self._room(), rank // self._width)

    def seat_of(self, generator: str) -> BundleSlot:
        """Where a generator sits; started again it has the same name and seat."""
        return BundleSlot(self._room(), _number(generator))

    async def devices_of(self, generator: str) -> str:
        """``CUDA_VISIBLE_DEVICES`` of a generator: the devices of its ranks, or an empty string where there are none."""
        if not self._gpus:
            return ""
        first = _number(generator) * self._width
        return ",".join([await self._devices_of_rank(rank) for rank in range(first, first + self._width)])

    def close(self) -> None:
        """Give the room back."""
        self._cluster.forget(ROOM)

    def _room(self) -> Room:
        return self._cluster.reserve(ROOM, [self._bundle] * self._count, one_node=True)

    async def _devices_of_rank(self, rank: int) -> str:
        name = f"learner-{rank}"
        try:
            handle = ray.get_actor(name, namespace=self._cluster.namespace)
        except ValueError:
            raise ActorLost(f"{name} is not there to say which GPU it shares") from None
        devices: str = await call(handle.devices.remote(), f"{name}.devices", ASK_S)
        return devices


def _number(generator: str) -> int:
    return int(generator.rpartition("-")[2])
