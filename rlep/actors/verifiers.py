"""Verifier actors: each supervises its own killable grading processes; their number is independent of everything else."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlep.actors.cluster import SENT_AGAIN, Cluster, call
from rlep.actors.placement import may_hold
from rlep.actors.replicas import ActorStatus, Changes, Replica, ReplicaSet, RoleStatus, State
from rlep.actors.supervised import Supervised
from rlep.config.roles import FUNCTIONS, VerifierConfig
from rlep.core.errors import ActorLost, ConfigError
from rlep.core.plural import counted
from rlep.core.types import Asked, Completion, Prompt, Verdict
from rlep.services.verifier.grader import configured_verifier, limits_of
from rlep.services.verifier.user_function import profile_version

BATCH = 64
"""Responses in one call: enough to make the call itself cheap, few enough to spread one prompt's responses."""


@ray.remote(concurrency_groups={"health": 1})
class VerifierActor:
    """One verifier."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    def start(self, config: VerifierConfig) -> None:
        """Start the grading processes, once."""
        if hasattr(self, "_verifier"):
            return
        self._verifier = configured_verifier(config, workers=config.workers)

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool], asked: Asked) -> list[Verdict]:
        """Return one verdict per text, in order."""
        return self._verifier.grade(reference, texts, truncated, asked)

    def close(self) -> None:
        """End the grading processes."""
        self._verifier.close()


@ray.remote(num_cpus=0, max_retries=SENT_AGAIN)
def try_verifier(config: VerifierConfig) -> tuple[str, str]:
    """Return the version of the verifier on this node, and why it cannot serve; one of them is empty."""
    try:
        with configured_verifier(config) as verifier:
            verifier.check()
            return verifier.version, ""
    except ConfigError as error:
        return "", str(error)


async def check_nodes(cluster: Cluster, config: VerifierConfig) -> str:
    """Try the verifier on each node of a joined cluster that may have one; return how many nodes they are, as a sentence.

    Raises ``ConfigError`` naming the first node where it cannot serve, as where the user's function cannot be imported,
    or where that function is another than here.
    """
    if cluster.home is not None:
        return ""
    nodes = [node for node in ray.nodes() if node["Alive"] and may_hold(node, config)]
    faults = await asyncio.gather(*(_fault_on(node, config) for node in nodes))
    for node, fault in zip(nodes, faults, strict=True):
        if fault:
            raise ConfigError(
                f"verifier.profile = {config.profile} on node {node['NodeManagerAddress']}: {fault}. Install it on every node "
                "that may have a verifier, submit the run with `rlep submit`, or choose nodes by verifier.label_selector"
            )
    return f"{config.profile} serves on {counted(len(nodes), 'node')}"


async def _fault_on(node: Mapping[str, Any], config: VerifierConfig) -> str:
    where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    reference = try_verifier.options(scheduling_strategy=where).remote(config)
    what = f"trying a verifier on node {node['NodeManagerAddress']}"
    try:
        version, fault = await call(reference, what, config.start_deadline_s)
    except RayError as error:  # of a node without rlep, or whose memory is full
        return str(error).strip().rpartition("\n")[2]
    if config.profile.startswith(FUNCTIONS) and not fault and not version.startswith(profile_version(config.profile)):
        return "the function's file there is not the one here"
    return str(fault)


class VerifierReplica(Replica):
    """The driver's side of one verifier."""

    def __init__(self, name: str, cluster: Cluster, config: VerifierConfig, freed: Changes) -> None:
        """``freed``: told whenever it may take a call."""
        super().__init__(name)
        self._cluster, self._config, self._freed = cluster, config, freed
        self.state: State = "placing"
        self.busy = 0
        """Calls it holds."""
        self.actor = Supervised(
            name,
            self._start,
            restarts=config.restarts,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            report=cluster.report,
        )

    @property
    def out_of_restarts(self) -> bool:
        """True once it is dead and will not be started again."""
        return self.actor.out_of_restarts

    def status(self) -> ActorStatus:
        """Return its row of ``rlep status``."""
        return ActorStatus(
            self.name,
            "lost" if self.out_of_restarts else self.state,
            in_flight=self.busy,
            restarts=self.actor.restarts,
            error=self._cluster.waits_for(self._config) if self.state == "placing" else self.actor.error,
        )

    async def join(self) -> None:
        """Start it and let it work; raises why it cannot start."""
        try:
            await self.actor.handle()
        except BaseException:
            self.actor.kill()
            self._cluster.forget(self.name)
            raise
        self.state = "serving"
        self._freed.tell()
        self._cluster.report("actor_started", self.name, "")

    async def leave(self, grace_s: float) -> None:
        """Finish what it holds, for ``grace_s`` seconds at most, and end; others grade the rest."""
        self.state, self.actor.restarts_left = "leaving", 0
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._freed.until(lambda: not self.busy)
        back = self.busy
        if back:
            self.actor.kill()
        else:
            await self.actor.close()
        self._cluster.forget(self.name)
        self._cluster.report("actor_drained", self.name, f"{back} calls handed back" if back else "")

    async def _start(self) -> ActorHandle[Any]:
        handle = await self._cluster.place(VerifierActor, self.name, self._config)
        if self.state == "placing":
            self.state = "starting"
        await call(handle.start.remote(self._config), f"starting {self.name}", self._config.start_deadline_s)
        return handle


class VerifierPool:
    """All verifiers of a run behind the driver's ``Verifiers`` port."""

    def __init__(self, cluster: Cluster, config: VerifierConfig) -> None:
        self._cluster, self._config = cluster, config
        self._freed = Changes()
        self._replicas = ReplicaSet("verifier", lambda name: VerifierReplica(name, cluster, config, self._freed))
        self._waiting = 0

    async def start(self) -> None:
        """Start all verifiers."""
        await self._replicas.start(self._config.count)

    async def scale(self, count: int, grace_s: float) -> None:
        """Bring the role to ``count`` verifiers, as ``ReplicaSet.scale`` does."""
        await self._replicas.scale(count, grace_s)

    async def drain(self, name: str, grace_s: float) -> None:
        """Drain one verifier, as ``ReplicaSet.drain`` does."""
        await self._replicas.drain(name, grace_s)

    def status(self) -> RoleStatus:
        """Return a row for every verifier, and how many calls wait for one."""
        rows = tuple(replica.status() for replica in self._replicas.members)
        return RoleStatus("verifier", rows, self._waiting)

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

    async def _grade(self, prompt: Prompt, part: Sequence[Completion]) -> list[Verdict]:
        texts = [prompt.opening + completion.text for completion in part]
        truncated = [completion.finish_reason == "length" for completion in part]
        while True:
            replica = await self._free_replica()
            try:
                with self._cluster.timeline.span(replica.name, "grade", len(part)):
                    return await self._call(replica, prompt, texts, truncated)
            except ActorLost:
                if replica.state != "leaving" and not replica.out_of_restarts:
                    raise
            finally:
                replica.busy -= 1
                self._freed.tell()

    async def _call(
        self, replica: VerifierReplica, prompt: Prompt, texts: list[str], truncated: list[bool]
    ) -> list[Verdict]:
        # Each response, of this call and of one before it, may last until its wall-clock limit.
        limits = limits_of(self._config)
        deadline = 60 + limits.wall_seconds * math.ceil((BATCH + len(texts)) / limits.at_once)
        given = prompt.reference, texts, truncated, prompt.asked
        verdicts: list[Verdict] = await replica.actor.call("grade", *given, deadline_s=deadline)
        return verdicts

    async def _free_replica(self) -> VerifierReplica:
        """Wait for a verifier that holds fewer than two calls, of which one travels while one works; take the least busy."""

        def free() -> list[VerifierReplica]:
            members = self._replicas.members
            if all(replica.out_of_restarts for replica in members):
                raise ActorLost("; ".join(["no verifier is left", *(replica.actor.error for replica in members[:1])]))
            at_work = [r for r in members if r.state == "serving" and not r.out_of_restarts]
            return [replica for replica in at_work if replica.busy < 2]

        self._waiting += 1
        try:
            await self._freed.until(lambda: bool(free()))
        finally:
            self._waiting -= 1
        replica = min(free(), key=lambda replica: replica.busy)
        replica.busy += 1
        return replica
