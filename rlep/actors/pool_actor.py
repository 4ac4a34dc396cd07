"""The run's pool server: a Ray actor that hosts it on a unix socket, and is started again when it is lost."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from rlep.actors.cluster import Cluster, call
from rlep.actors.replicas import RoleStatus
from rlep.actors.supervised import Supervised
from rlep.config.roles import ActorConfig
from rlep.core.errors import PoolError, RlepError
from rlep.core.heap import keep_freed_memory
from rlep.services.pool.rpc.async_client import AsyncPoolClient
from rlep.services.pool.rpc.places import address_of, client_options, connected, hosted, private_socket
from rlep.services.pool.values import PoolPlace, PoolStats

ACTOR_NAME = "pool"
NODE_LABEL = "ray.io/node-id"
"""The label that Ray gives every node."""
PING_S = 1.0
"""Time between two pings: the driver calls the server itself, so that nobody else finds out that the actor is lost."""


@ray.remote(concurrency_groups={"health": 1})
class PoolActor:
    """Hosts the server of a pool's place; other jobs find it by name in the run's namespace."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def start(self, place: PoolPlace, deadline: float) -> None:
        """Have a server at the place, once: see ``hosted``."""
        if hasattr(self, "_hosting"):
            return
        keep_freed_memory()
        with ExitStack() as hosting:
            hosting.enter_context(hosted(place, deadline=deadline))
            self._place, self._hosting = place, hosting.pop_all()

    def stats(self) -> PoolStats:
        """Statistics of the pool, for other jobs."""
        with connected(self._place) as client:
            return client.stats()

    def close(self) -> None:
        """Stop the server; another process that uses the same directory goes on with its own."""
        self._hosting.close()


class PoolHost:
    """The pool actor of a run, and clients of its server.

    Waits for: nothing but its timer. Unblocked by: a ping that fails, upon which it starts the actor again; the clients
    try their calls again meanwhile.
    """

    def __init__(self, cluster: Cluster, place: PoolPlace, deadline: float, name: str = ACTOR_NAME) -> None:
        """``place``: with absolute paths, on the node of the driver; its name: what others ask about. ``name``, of the actor."""
        self._place = place = replace(place, socket=private_socket(place.url))
        self._deadline = deadline + 60  # the server's own deadline ends first, with its reason
        self._span, self._started = cluster.timeline.span, asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

        async def start() -> ActorHandle[Any]:
            here = {
                NODE_LABEL: ray.get_runtime_context().get_node_id()
            }  # which has the directory, and the password's file
            config = ActorConfig(cpus=0, label_selector=here)
            actor = await cluster.place(PoolActor, name, config)
            longest = max(self._deadline, config.start_deadline_s)  # an embedded Redis may have much to load
            await call(actor.start.remote(place, deadline), "opening the pool", longest)
            return actor

        self._actor = Supervised(name, start, restarts=3, heartbeat_timeout_s=deadline, report=cluster.report)

    async def start(self) -> None:
        """Have the server up. Raises ``PoolError`` or ``ConfigError`` with the reason."""
        await self._actor.handle()
        self._started.set()
        self._watching = asyncio.create_task(self._watch())

    async def started(self) -> None:
        """Wait until the server is up; ``start`` ends this wait, or fails and ends the run."""
        await self._started.wait()

    def client(self, name: str, **options: Any) -> AsyncPoolClient:
        """A client of the pool ``name``; ``options``: others of ``PoolClient``. Raises ``ConfigError``."""
        options = client_options(replace(self._place, name=name)) | {"deadline": self._deadline} | options
        client = AsyncPoolClient(address_of(self._place), **options)
        client.span = partial(self._span, name)
        return client

    async def _watch(self) -> None:
        while not (self._actor.closed or self._actor.out_of_restarts):  # then calls of clients run into their deadlines
            await asyncio.sleep(PING_S)
            with suppress(RlepError, RayError):  # a start that fails costs a restart and is reported
                await self._actor.call("ping", deadline_s=self._deadline)

    def status(self) -> RoleStatus:
        """The actor's state."""
        return RoleStatus("pool", (self._actor.status(),))

    async def close(self) -> None:
        """End the actor."""
        if self._watching is not None:
            self._watching.cancel()
        await self._actor.close()


async def attached_stats(cluster: Cluster, *, deadline_s: float = 30.0) -> PoolStats:
    """Statistics of the pool of a running run, asked from another job; ``cluster`` is connected under the run's name.

    With ``replay.source = "live"`` that is its live pool. Raises ``PoolError`` when the run has no pool actor now.
    """
    try:
        handle = ray.get_actor(ACTOR_NAME, namespace=cluster.namespace)
    except ValueError:
        raise PoolError(f"no pool actor in {cluster.namespace}: the run is not running there, or has no pool") from None
    stats: PoolStats = await call(handle.stats.remote(), f"pool of {cluster.namespace}", deadline_s)
    return stats
