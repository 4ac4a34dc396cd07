"""Generators on the devices of the learner's ranks: one placement group, whose bundles hold ranks and the generators on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import ray

from rlep.actors.cluster import Cluster, call
from rlep.actors.placement import BundleSlot, PlacementGroup
from rlep.config.roles import ActorConfig, GeneratorConfig, LearnerConfig
from rlep.core.errors import ActorLost

GROUP_NAME = "colocated"
ASK_S = 60.0
GUEST = ActorConfig(cpus=0)
"""Resources that a generator asks of its bundle: none, because the ranks, which sleep while it works, reserve all of it."""


class Colocated:
    """Slots of the actors, and the turn in which generators may start."""

    def __init__(
        self,
        cluster: Cluster,
        generator: GeneratorConfig,
        learner: LearnerConfig,
        time_share: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """``time_share``: a block in which the devices are the generators'."""
        self._cluster, self._time_share = cluster, time_share
        self._width = generator.tensor_parallel
        # A bundle is on one node: the ranks of a generator have to be, and those of a replica are meant to be.
        self._ranks_each = self._width if learner.replicas == 1 else learner.shards
        self._count = learner.ranks // self._ranks_each
        self._bundle = ActorConfig(
            # they never work at the same time
            cpus=max(generator.cpus * (self._ranks_each // self._width), learner.cpus * self._ranks_each),
            gpus=learner.gpus * self._ranks_each,
            label_selector=learner.label_selector,
        )
        self._gpus = learner.gpus > 0
        self.learner_up = asyncio.Event()
        """Set once all ranks have started: only then can they say which devices they have."""

    @asynccontextmanager
    async def starting(self) -> AsyncGenerator[None]:
        """Enter the block once the devices are the generators': a generator starts within it."""
        await self.learner_up.wait()  # or until the learner's own deadline ends the start of the run
        async with self._time_share():
            yield

    def slot_of_rank(self, rank: int) -> BundleSlot:
        """Return the slot of a rank."""
        return BundleSlot(self._group(), rank // self._ranks_each)

    def slot_of(self, generator: str) -> BundleSlot:
        """Return the slot of a generator; started again it has the same name and slot."""
        return self.slot_of_rank(_number(generator) * self._width)

    async def devices_of(self, generator: str) -> str:
        """Return ``CUDA_VISIBLE_DEVICES`` for a generator: the devices of its ranks, or an empty string where there are none."""
        if not self._gpus:
            return ""
        first = _number(generator) * self._width
        return ",".join([await self._devices_of_rank(rank) for rank in range(first, first + self._width)])

    def close(self) -> None:
        """Free the placement group."""
        self._cluster.forget(GROUP_NAME)

    def _group(self) -> PlacementGroup:
        return self._cluster.reserve(GROUP_NAME, [self._bundle] * self._count)

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
