"""A role of actors that supervise killable worker processes: verifiers, environments. Their number is independent of all else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError

from rlep.actors.cluster import Cluster, call
from rlep.actors.replicas import ActorStatus, Changes, Replica, ReplicaSet, RoleStatus, State
from rlep.actors.supervised import Supervised
from rlep.config.roles import WorkerRoleConfig
from rlep.core.errors import ActorLost, RlepError
from rlep.core.plural import counted


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Parts that the actors of a role share."""

    cluster: Cluster
    config: WorkerRoleConfig
    actor: ActorClass[Any]
    given: tuple[object, ...]
    """Arguments of the actor's ``start``."""
    freed: Changes
    """Told whenever one of them may take more."""


class WorkerReplica(Replica):
    """The driver's side of one actor."""

    HELD: ClassVar[str] = "call"
    LEFT: ClassVar[str] = "handed back"
    """Fate of what it still holds when its time to leave is over."""

    def __init__(self, name: str, parts: WorkerParts) -> None:
        super().__init__(name)
        self.parts = parts
        self.state: State = "placing"
        self.busy = 0
        """Calls or episodes it holds."""
        self.told: Any = None
        """Answer of the actor's ``start``."""
        self._reviving: asyncio.Task[None] | None = None
        self.actor = Supervised(
            name,
            self._start,
            restarts=parts.config.restarts,
            heartbeat_timeout_s=parts.config.heartbeat_timeout_s,
            report=parts.cluster.report,
        )

    @property
    def out_of_restarts(self) -> bool:
        """True once it is dead and will not be started again."""
        return self.actor.out_of_restarts

    def status(self) -> ActorStatus:
        """Return its row of ``rlep status``."""
        parts = self.parts
        return ActorStatus(
            self.name,
            "lost" if self.out_of_restarts else self.state,
            in_flight=self.busy,
            restarts=self.actor.restarts,
            error=parts.cluster.waits_for(parts.config) if self.state == "placing" else self.actor.error,
        )

    async def join(self) -> None:
        """Start it and let it work; raises why it cannot start."""
        try:
            await self.actor.handle()
        except BaseException:
            self.actor.kill()
            self.parts.cluster.forget(self.name)
            raise
        self.state = "serving"
        self.parts.freed.tell()
        self.parts.cluster.report("actor_started", self.name, "")

    def lose(self, handle: ActorHandle[Any], error: BaseException) -> None:
        """Take an actor that is dead or silent out of service, and start another, which may wait long for a place."""
        if handle is not self.actor.living:
            return
        self.actor.replace(handle, error)
        if self.state != "leaving":
            self.state = "placing"
            self._reviving = asyncio.create_task(self._revive())
        self.parts.freed.tell()

    async def _revive(self) -> None:
        while not (self.out_of_restarts or self.actor.closed):
            with suppress(RlepError, RayError):  # it costs a restart
                await self.actor.handle()
                self.state = "serving"
                break
        self.parts.freed.tell()

    def _stop_reviving(self) -> None:
        if self._reviving is not None:
            self._reviving.cancel()

    async def leave(self, grace_s: float) -> None:
        """Finish what it holds, for ``grace_s`` seconds at most, and end."""
        self._stop_reviving()
        self.state, self.actor.restarts_left = "leaving", 0
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.parts.freed.until(lambda: not self.busy)
        back = self.busy
        if back:
            self.actor.kill()
        else:
            await self.actor.close()
        self.parts.cluster.forget(self.name)
        self.parts.cluster.report("actor_drained", self.name, f"{counted(back, self.HELD)} {self.LEFT}" if back else "")

    async def close(self) -> None:
        """End it with the run."""
        self._stop_reviving()
        await self.actor.close()

    async def _start(self) -> ActorHandle[Any]:
        parts = self.parts
        handle = await parts.cluster.place(parts.actor, self.name, parts.config)
        if self.state == "placing":
            self.state = "starting"
        starting = handle.start.remote(*parts.given)
        self.told = await call(starting, f"starting {self.name}", parts.config.start_deadline_s)
        return handle


W = TypeVar("W", bound=WorkerReplica)


class WorkerRole(Generic[W]):
    """All actors of a role."""

    def __init__(self, kind: str, parts: WorkerParts, create: Callable[[str, WorkerParts], W]) -> None:
        """``kind``: the role's name, and the beginning of its actors'."""
        self._kind, self._parts = kind, parts
        self._replicas = ReplicaSet(kind, lambda name: create(name, parts))
        self._waiting = 0

    async def start(self) -> None:
        """Start all actors."""
        await self._replicas.start(self._parts.config.count)

    async def scale(self, count: int, grace_s: float) -> None:
        """Bring the role to ``count`` actors, as ``ReplicaSet.scale`` does."""
        await self._replicas.scale(count, grace_s)

    async def drain(self, name: str, grace_s: float) -> None:
        """Drain one actor, as ``ReplicaSet.drain`` does."""
        await self._replicas.drain(name, grace_s)

    def status(self) -> RoleStatus:
        """Return a row for every actor, and how many calls or episodes wait for one."""
        rows = tuple(replica.status() for replica in self._replicas.members)
        return RoleStatus(self._kind, rows, self._waiting)

    async def close(self) -> None:
        """End all actors."""
        await asyncio.gather(*(replica.close() for replica in self._replicas.members))

    async def _free_replica(self, most: float = math.inf) -> W:
        """Wait for an actor that holds fewer than ``most``; take the least busy, which holds one more then.

        Raises ``ActorLost`` when none is left and all are out of restarts.
        """

        def free() -> list[W]:
            members = self._replicas.members
            if all(replica.out_of_restarts for replica in members):
                raise ActorLost("; ".join([f"no {self._kind} is left", *(one.actor.error for one in members[:1])]))
            at_work = [one for one in members if one.state == "serving" and not one.out_of_restarts]
            return [replica for replica in at_work if replica.busy < most]

        self._waiting += 1
        try:
            await self._parts.freed.until(lambda: bool(free()))
        finally:
            self._waiting -= 1
        replica = min(free(), key=lambda replica: replica.busy)
        replica.busy += 1
        return replica
