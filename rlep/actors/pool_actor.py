"""The pool as a Ray actor: one named actor holds the connection, and the embedded Redis where none is configured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from rlep.actors.cluster import Cluster, call
from rlep.actors.replicas import RoleStatus
from rlep.actors.supervised import Supervised
from rlep.config.roles import ActorConfig
from rlep.core.errors import ConfigError, PoolError
from rlep.core.heap import keep_freed_memory
from rlep.core.types import AddReport, Trajectory
from rlep.services.pool import named
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.run_pool import open_run_pool
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.values import PoolOptions, PoolPlace, PoolStats

ACTOR_NAME, LIVE_ACTOR_NAME = "pool", "live"
NODE_LABEL = "ray.io/node-id"
"""The label that Ray gives every node."""


@ray.remote(concurrency_groups={"health": 1})
class PoolActor:
    """The verbs of ``services.pool.Pool`` on the cluster; other jobs find it by name in the run's namespace."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def start(self, place: PoolPlace, tokenizer_digest: str, options: PoolOptions) -> None:
        """Open the pool, once: see ``open_run_pool``."""
        if hasattr(self, "_opened"):
            return
        keep_freed_memory()
        self._opened = open_run_pool(place, tokenizer_digest, options)

    def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """See ``Pool.add``."""
        return self._opened.pool.add(trajectories)

    def sample(self, prompt_ids: Sequence[str], count: int, seed: int, step: int) -> Sample:
        """See ``Pool.sample``."""
        return self._opened.pool.sample(prompt_ids, count, seed=seed, step=step)

    def fetch(self, wanted: named.Named) -> Sample:
        """See ``named.fetch``."""
        return named.fetch(self._redis(), wanted)

    def contents(self) -> dict[str, list[str]]:
        """See ``named.contents``."""
        return named.contents(self._redis())

    def remove(self, gone: named.Named) -> int:
        """See ``named.remove``."""
        return named.remove(self._redis(), gone)

    def _redis(self) -> Pool:
        if not isinstance(self._opened.pool, Pool):
            raise ConfigError("responses are asked for by name of a Redis only, not of a pool server")
        return self._opened.pool

    def stats(self) -> PoolStats:
        """See ``Pool.stats``."""
        return self._opened.pool.stats()

    def digest(self) -> str:
        """See ``Pool.digest``."""
        return self._opened.pool.digest()

    def prompt_ids(self) -> list[str]:
        """See ``Pool.prompt_ids``."""
        return self._opened.pool.prompt_ids()

    def close(self) -> None:
        """Close the pool, and its embedded server when nobody else uses it."""
        self._opened.close()


class PoolService:
    """The pool actor behind the driver's ``ReplayPool`` port."""

    def __init__(
        self,
        cluster: Cluster,
        place: PoolPlace,
        tokenizer_digest: str,
        options: PoolOptions,
        name: str = ACTOR_NAME,
    ) -> None:
        """``place``: with absolute paths, on the node of the driver; ``name`` of the actor."""

        async def start() -> ActorHandle[Any]:
            here = {
                NODE_LABEL: ray.get_runtime_context().get_node_id()
            }  # which has the directory, and the password's file
            actor = await cluster.place(PoolActor, name, ActorConfig(cpus=0, label_selector=here))
            opened = actor.start.remote(place, tokenizer_digest, options)
            await call(opened, "opening the pool", self._deadline)
            return actor

        self._span = cluster.timeline.span
        self._deadline = options.deadline + 60  # the pool's own deadline ends first, with its reason
        self._actor = Supervised(name, start, restarts=3, heartbeat_timeout_s=options.deadline, report=cluster.report)

    async def start(self) -> None:
        """Open the pool. Raises ``PoolError`` or ``ConfigError`` with the reason."""
        await self._actor.handle()

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """See the port."""
        with self._span(self._actor.name, "sample", len(prompt_ids)):
            sample: Sample = await self._actor.call(
                "sample", list(prompt_ids), count, seed, step, deadline_s=self._deadline
            )
        return sample.trajectories()

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """See the port."""
        with self._span(self._actor.name, "add", len(trajectories)):
            report: AddReport = await self._actor.call("add", list(trajectories), deadline_s=self._deadline)
        return report

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[Trajectory]]:
        """See the port ``LivePool``."""
        with self._span(self._actor.name, "fetch", len(wanted)):
            sample: Sample = await self._actor.call("fetch", dict(wanted), deadline_s=self._deadline)
        return sample.trajectories()

    async def contents(self) -> Mapping[str, Sequence[str]]:
        """See the port ``LivePool``."""
        held: dict[str, list[str]] = await self._actor.call("contents", deadline_s=self._deadline)
        return held

    async def remove(self, gone: Mapping[str, Sequence[str]]) -> int:
        """See the port ``LivePool``."""
        removed: int = await self._actor.call("remove", dict(gone), deadline_s=self._deadline) if gone else 0
        return removed

    async def stats(self) -> PoolStats:
        """What the pool holds."""
        stats: PoolStats = await self._actor.call("stats", deadline_s=self._deadline)
        return stats

    async def digest(self) -> str:
        """See the port."""
        digest: str = await self._actor.call("digest", deadline_s=self._deadline)
        return digest

    async def prompt_ids(self) -> list[str]:
        """Questions with at least one stored response."""
        ids: list[str] = await self._actor.call("prompt_ids", deadline_s=self._deadline)
        return ids

    def status(self) -> RoleStatus:
        """The actor's state."""
        return RoleStatus("pool", (self._actor.status(),))

    async def close(self) -> None:
        """End the actor."""
        await self._actor.close()


async def attached_stats(cluster: Cluster, *, deadline_s: float = 30.0) -> PoolStats:
    """Statistics of the pool of a running run, asked from another job; ``cluster`` is connected under the run's name.

    With ``replay.source = "live"`` that is its live pool. Raises ``PoolError`` when the run has no pool actor now.
    """
    for name in (ACTOR_NAME, LIVE_ACTOR_NAME):
        try:
            handle = ray.get_actor(name, namespace=cluster.namespace)
        except ValueError:
            continue
        stats: PoolStats = await call(handle.stats.remote(), f"pool of {cluster.namespace}", deadline_s)
        return stats
    raise PoolError(f"no pool actor in {cluster.namespace}: the run is not running there, or has no pool")
