"""Verifier actors: each supervises its own killable grading processes; their number is independent of everything else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from rlep.actors.cluster import Cluster, call
from rlep.actors.replicas import ActorStatus, ReplicaSet, RoleStatus, State
from rlep.actors.supervised import Supervised
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ActorLost
from rlep.core.types import Completion, Prompt, Verdict
from rlep.services.verifier.grader import build_verifier
from rlep.services.verifier.jail import Limits

BATCH = 64
"""Responses in one call: enough to make the call itself cheap, few enough to spread one prompt's responses."""


@ray.remote(concurrency_groups={"health": 1})
class VerifierActor:
    """One verifier."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def start(self, config: VerifierConfig) -> None:
        """Start the grading processes, once."""
        if hasattr(self, "_verifier"):
            return
        self._verifier = build_verifier(
            config.profile, workers=config.workers, limits=limits_of(config), correct_at=config.correct_at
        )

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool]) -> list[Verdict]:
        """One verdict per text, in order."""
        return self._verifier.grade(reference, texts, truncated)

    def close(self) -> None:
        """End the grading processes."""
        self._verifier.close()


def limits_of(config: VerifierConfig) -> Limits:
    """What one response may use; a wall-clock limit below its CPU time would be the only one."""
    return Limits(cpu_seconds=config.cpu_seconds, wall_seconds=max(Limits().wall_seconds, 4 * config.cpu_seconds))


class VerifierReplica:
    """The driver's side of one verifier."""

    def __init__(self, name: str, cluster: Cluster, config: VerifierConfig) -> None:
        self.name = name
        self.state: State = "placing"
        self.busy = 0
        """Calls it holds."""

        async def start() -> ActorHandle[Any]:
            handle = await cluster.place(VerifierActor, name, config)
            if self.state == "placing":
                self.state = "starting"
            await call(handle.start.remote(config), f"starting {name}", config.start_deadline_s)
            return handle

        self.actor = Supervised(
            name, start, restarts=config.restarts, heartbeat_timeout_s=config.heartbeat_timeout_s, report=cluster.report
        )

    @property
    def out_of_restarts(self) -> bool:
        """Whether it is dead and will not be started again."""
        return self.actor.out_of_restarts


class VerifierPool:
    """All verifiers of a run behind the driver's ``Verifiers`` port."""

    def __init__(self, cluster: Cluster, config: VerifierConfig) -> None:
        self._cluster, self._config = cluster, config
        self._replicas = ReplicaSet(
            "verifier", lambda name: VerifierReplica(name, cluster, config), self._join, self._leave
        )
        self._freed = asyncio.Event()
        self._waiting = 0

    async def start(self) -> None:
        """Start all verifiers."""
        await self._replicas.start(self._config.count)

    async def scale(self, count: int, grace_s: float) -> None:
        """See ``ReplicaSet.scale``."""
        await self._replicas.scale(count, grace_s)

    async def drain(self, name: str, grace_s: float) -> None:
        """See ``ReplicaSet.drain``."""
        await self._replicas.drain(name, grace_s)

    def status(self) -> RoleStatus:
        """What every verifier does now."""
        return RoleStatus("verifier", tuple(map(self._status_of, self._replicas.members)), self._waiting)

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order, the same however many verifiers there are.

        The responses of a verifier that is lost or removed are graded again, by its successor or another one. Raises
        ``ActorLost`` when no verifier is left and all are out of restarts.
        """
        parts = [completions[start : start + BATCH] for start in range(0, len(completions), BATCH)]
        graded = await asyncio.gather(*(self._grade(prompt, part) for part in parts))
        return [verdict for part in graded for verdict in part]

    async def close(self) -> None:
        """End all verifiers."""
        await asyncio.gather(*(replica.actor.close() for replica in self._replicas.members))

    def _status_of(self, replica: VerifierReplica) -> ActorStatus:
        return ActorStatus(
            replica.name,
            "lost" if replica.out_of_restarts else replica.state,
            in_flight=replica.busy,
            restarts=replica.actor.restarts,
            error=self._cluster.waits_for(self._config) if replica.state == "placing" else replica.actor.error,
        )

    async def _join(self, replica: VerifierReplica) -> None:
        try:
            await replica.actor.handle()
        except BaseException:
            replica.actor.kill()
            self._cluster.forget(replica.name)
            raise
        replica.state = "serving"
        self._freed.set()
        self._cluster.report("actor_started", replica.name, "")

    async def _leave(self, replica: VerifierReplica, grace_s: float) -> None:
        """Let a verifier finish what it holds, for ``grace_s`` seconds at most; others grade the rest."""
        replica.state, replica.actor.restarts_left = "leaving", 0
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._until(lambda: not replica.busy)
        back = replica.busy
        if back:
            replica.actor.kill()
        else:
            await replica.actor.close()
        self._cluster.forget(replica.name)
        self._cluster.report("actor_drained", replica.name, f"{back} calls handed back" if back else "")

    async def _grade(self, prompt: Prompt, part: Sequence[Completion]) -> list[Verdict]:
        texts = [prompt.opening + completion.text for completion in part]
        truncated = [completion.finish_reason == "length" for completion in part]
        while True:
            replica = await self._free_replica()
            try:
                with self._cluster.timeline.span(replica.name, "grade", len(part)):
                    return await self._call(replica, prompt.reference, texts, truncated)
            except ActorLost:
                if replica.state != "leaving" and not replica.out_of_restarts:
                    raise
            finally:
                replica.busy -= 1
                self._freed.set()

    async def _call(
        self, replica: VerifierReplica, reference: str, texts: list[str], truncated: list[bool]
    ) -> list[Verdict]:
        # Each response, of this call and of one before it, may last until its wall-clock limit.
        deadline = 60 + limits_of(self._config).wall_seconds * (BATCH + len(texts))
        verdicts: list[Verdict] = await replica.actor.call("grade", reference, texts, truncated, deadline_s=deadline)
        return verdicts

    async def _free_replica(self) -> VerifierReplica:
        """The least busy verifier, once one holds fewer than two calls: one works while one travels."""

        def free() -> list[VerifierReplica]:
            members = self._replicas.members
            if all(one.out_of_restarts for one in members):
                raise ActorLost("; ".join(["no verifier is left", *(one.actor.error for one in members[:1])]))
            return [one for one in members if one.state == "serving" and not one.out_of_restarts and one.busy < 2]

        self._waiting += 1
        try:
            await self._until(lambda: bool(free()))
        finally:
            self._waiting -= 1
        replica = min(free(), key=lambda replica: replica.busy)
        replica.busy += 1
        return replica

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._freed.clear()
            await self._freed.wait()
