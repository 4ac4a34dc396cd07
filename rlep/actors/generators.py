"""Generators: each vLLM engine in its own actor, pulling requests from one queue, so that their number may differ.

loop                  consumes                     waits for                       unblocked by
──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
generate (per call)   completions of its job       the next of them, to its        a generator that answers; settle, when
                                                   deadline                        none can; cancel
_feed (per replica)   requests of all jobs         see ``generator_replica``
publish               a weight update              every generator that lives      their answers; one that is started again
take                  parts of one transfer        every member                    their answers, or their loss
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from ray.exceptions import RayError

from rlep.actors.cluster import Cluster
from rlep.actors.colocation import Colocated
from rlep.actors.generator_replica import Fleet, GeneratorReplica, GeneratorState
from rlep.actors.replicas import ReplicaSet, RoleStatus
from rlep.actors.work_queue import WorkQueue
from rlep.config.schema import Config
from rlep.core.errors import (
    ActorLost,
    ConfigError,
    DeadlineExceeded,
    ModelError,
    RlepError,
    WeightsLost,
    WeightSyncError,
)
from rlep.core.types import Completion, Reissued, Request, Sampling
from rlep.engines.weights.weight_update import WeightUpdate
from rlep.metrics.catalogue import MetricValue


class GeneratorPool:
    """All generators of a run behind the driver's ``Generators`` port, and the weights that they serve."""

    def __init__(
        self,
        cluster: Cluster,
        config: Config,
        model: Path,
        *,
        lease_s: float,
        shared: Colocated | None = None,
    ) -> None:
        """``lease_s``: from ``GeneratorConfig.lease``; ``shared``: set when they share their devices with the learner."""
        self._queue = WorkQueue(lease_s, has_room=self._has_room)
        self._fleet = Fleet(
            cluster,
            config,
            model,
            self._queue,
            shared,
            settle=self._settle,
        )
        self._set = ReplicaSet("generator", lambda name: GeneratorReplica(name, self._fleet))

    @property
    def replicas(self) -> list[GeneratorReplica]:
        """Every generator that was added and not removed, oldest first."""
        return self._set.members

    async def start(self, *, base_version: int | None = None) -> None:
        """Start all engines; ``base_version`` serves the model directory's weights as that policy version."""
        self._fleet.weights = base_version
        await self._set.start(self._fleet.config.generator.count)

    async def close(self) -> None:
        """End all engines."""
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    @property
    def reissued(self) -> Reissued:
        """Counts of requests that were given out again, and of completions that were dropped."""
        return self._queue.reissued

    async def scale(self, count: int, grace_s: float) -> None:
        """Bring the role to ``count`` generators. Raises ``ConfigError`` where they share the learner's devices."""
        self._check_elastic()
        await self._set.scale(count, grace_s)

    async def drain(self, name: str, grace_s: float) -> None:
        """Drain one generator. Raises ``ConfigError`` where they share the learner's devices."""
        self._check_elastic()
        await self._set.drain(name, grace_s)

    def _check_elastic(self) -> None:
        if self._fleet.colocated is not None:
            raise ConfigError(
                'cluster.placement = "colocated": there are as many generators as learner devices for them'
            )

    def status(self) -> RoleStatus:
        """Return a row for every generator, and how many requests wait for one."""
        rows = tuple(replica.status() for replica in self.replicas)
        return RoleStatus("generator", rows, self._queue.waiting, self.reissued)

    def cache_metrics(self) -> dict[str, MetricValue]:
        """Return what the heartbeats told of the KV caches: the largest use since this was last asked, and requests set back."""
        fleet = self._fleet
        use, fleet.kv_use = fleet.kv_use, None
        values: dict[str, MetricValue] = {"generator/preempted": fleet.preempted}
        return values if use is None else values | {"generator/kv_use": use}

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Yield exactly one completion per request, each as it finishes.

        Raises ``DeadlineExceeded``, ``ActorLost`` when no generator is left, and ``WeightsLost`` when none has weights.
        """
        if all(replica.out_of_restarts for replica in self.replicas):
            raise self._nobody_left()
        job = self._queue.put(requests, sampling)
        for replica in self.replicas:
            replica.look()
        self._settle()
        try:
            async with asyncio.timeout(deadline_s):
                for _ in range(len(requests)):
                    item = await job.finished.get()
                    if isinstance(item, Exception):
                        raise item
                    yield item
        except TimeoutError as error:
            if isinstance(error, RlepError):
                raise
            raise DeadlineExceeded(
                f"rollout: {len(job.missing)} of {len(requests)} completions missing after {deadline_s:.0f} s, "
                f"first {next(iter(job.missing), None)}; {self._queue.waiting} waiting for a generator"
                f"{self._holders()}"
            ) from None
        finally:
            held = self._queue.cancel(job)
            for replica in self.replicas:
                if replica.holder in held:
                    replica.stop(held[replica.holder])

    async def publish(self, weight_update: WeightUpdate, *, deadline_s: float) -> float:
        """Bring every living generator to weights in shared memory; returns the largest mean log-prob difference (nats).

        One that refuses twice is replaced, and one that starts later loads them too. Raises ``WeightSyncError`` when none
        did, and ``ModelError`` at once where they are another model's.
        """
        self._fleet.weights = weight_update
        await asyncio.gather(*(replica.load_or_lose(weight_update, deadline_s) for replica in self._living().values()))
        until = time.monotonic() + deadline_s
        while True:
            differences = [replica.difference(weight_update) for replica in self._staying()]
            if confirmed := [difference for difference in differences if difference is not None]:
                return max(confirmed)
            # All were lost: it is enough that one is started again.
            if all(replica.out_of_restarts for replica in self.replicas) or time.monotonic() > until:
                error = next((replica.error for replica in self.replicas if replica.error), None)
                raise WeightSyncError(f"no generator loaded policy version {weight_update.version}: {error}")
            await asyncio.sleep(0.1)

    async def sleep(self) -> None:
        """Have every engine free its device's memory; one that fails is killed."""
        await asyncio.gather(*(replica.sleep() for replica in self._living().values()))

    async def wake(self) -> None:
        """Bring every engine that is asleep to the weights published last."""
        weights, deadline_s = self._fleet.weights, self._fleet.config.generator.start_deadline_s
        if isinstance(weights, WeightUpdate):
            sleepers = [replica for replica in self._staying() if replica.state is GeneratorState.ASLEEP]
            await asyncio.gather(*(replica.load_or_lose(weights, deadline_s) for replica in sleepers))

    def living(self) -> tuple[str, ...]:
        """Return the names of those that can load weights now; one that was started again has another name.

        Raises ``ActorLost`` where there never will be any.
        """
        if all(replica.out_of_restarts for replica in self.replicas):
            raise self._nobody_left()
        return tuple(self._living())

    async def take(self, weight_updates: Mapping[str, WeightUpdate], *, deadline_s: float) -> float:
        """Have these take part in a transfer, each by its own weight update; returns the largest mean log-prob difference (nats).

        One that starts later serves nothing until the next transfer. Raises ``WeightSyncError`` that names who failed; one
        that is dead or silent is replaced, the others may try again. Raises ``ModelError`` as ``publish`` does.
        """
        living = self._living()

        async def load(name: str, weight_update: WeightUpdate) -> float:
            if name not in living:
                raise ActorLost("lost")
            return await living[name].load(weight_update, deadline_s)

        loads = (load(name, weight_update) for name, weight_update in weight_updates.items())
        outcomes = dict(zip(weight_updates, await asyncio.gather(*loads, return_exceptions=True), strict=True))
        for outcome in outcomes.values():
            retried = isinstance(outcome, RlepError | RayError) and not isinstance(outcome, ModelError)
            if isinstance(outcome, BaseException) and not retried:
                raise outcome
        if failed := [f"{name}: {outcome}" for name, outcome in outcomes.items() if isinstance(outcome, BaseException)]:
            raise WeightSyncError("; ".join(failed))
        return max(outcome for outcome in outcomes.values() if not isinstance(outcome, BaseException))

    def _has_room(self, holder: str) -> bool:
        replica = self._set.named(holder.rpartition(".")[0])
        return replica is not None and replica.holder == holder and replica.free > 0

    def _staying(self) -> list[GeneratorReplica]:
        return [replica for replica in self.replicas if replica.state is not GeneratorState.LEAVING]

    def _living(self) -> dict[str, GeneratorReplica]:
        return {replica.holder: replica for replica in self._staying() if replica.actor.living is not None}

    def _settle(self) -> None:
        """Stop generators on requests that another has answered, and end rollouts that cannot finish.

        Those are all when no generator is left, and those that wait for a publication, which waits for them.
        """
        superseded = self._queue.take_superseded()
        for replica in self.replicas if superseded else []:
            if replica.holder in superseded:
                replica.stop(superseded[replica.holder])
        if all(replica.out_of_restarts for replica in self.replicas):
            self._queue.fail(self._nobody_left())
        # Through shared memory, and from the model directory, one that starts again has weights at once.
        loses_weights = self._fleet.weights is None and self._fleet.config.generator.transfer != "shared_memory"
        if loses_weights and not any(replica.has_weights for replica in self._staying()):
            error = next((f": {replica.name}: {replica.error}" for replica in self.replicas if replica.error), "")
            self._queue.fail(WeightsLost(f"no generator has the policy's weights any more{error}"))

    def _nobody_left(self) -> ActorLost:
        causes = [f"{replica.name}: {replica.error}" for replica in self.replicas[:1]]
        return ActorLost("; ".join(["no generator is left", *causes]))

    def _holders(self) -> str:
        """Say who holds requests, for the error of a rollout that is late."""
        held = {replica: self._queue.count_leased(replica.holder) for replica in self.replicas}
        return "".join(
            f"; {replica.name} ({replica.state.value}) has {count}" for replica, count in held.items() if count
        )
