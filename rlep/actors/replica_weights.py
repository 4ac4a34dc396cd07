"""Weights into the engines of a replica set: all live ones load them at once, and sleep and wake around that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import ray
from ray.exceptions import RayError

from rlep.actors.cluster import call
from rlep.actors.generator_replica import GeneratorReplica, nobody_left
from rlep.config.roles import GeneratorConfig
from rlep.core.errors import ActorLost, RlepError, WeightSyncError
from rlep.engines.weights.weight_update import WeightUpdate


class EngineWeights:
    """The weights that the generators serve; ``members`` may change at any time."""

    def __init__(
        self,
        members: Callable[[], Sequence[GeneratorReplica]],
        span: Callable[[str, str], AbstractContextManager[None]],
        config: GeneratorConfig,
    ) -> None:
        self._members, self._span, self._config = members, span, config
        self.weight_update: WeightUpdate | None = None
        """The last one through shared memory, for replicas that start later."""

    async def publish(self, weight_update: WeightUpdate, *, deadline_s: float) -> float:
        """Bring every living generator to the published weights; returns the largest log-prob difference (nats).

        A generator that refuses twice is replaced. Raises ``WeightSyncError`` when none loaded the weights.
        """
        self.weight_update = weight_update
        for worker in self._staying():
            worker.difference = None
        await asyncio.gather(*(self._load(worker, weight_update, deadline_s) for worker in self._takers().values()))
        begun = time.monotonic()
        while not (differences := [worker.difference for worker in self._staying() if worker.difference is not None]):
            # all lost: it is enough that one is restarted
            error = next((worker.error for worker in self._members() if worker.error), None)
            if all(worker.out_of_restarts for worker in self._members()) or time.monotonic() - begun > deadline_s:
                raise WeightSyncError(f"no generator loaded policy version {weight_update.version}: {error}")
            await asyncio.sleep(0.1)
        return max(differences)

    async def sleep(self) -> None:
        """Have every engine free its device's memory; one that fails is killed."""
        await asyncio.gather(*(self._put_to_sleep(worker) for worker in self._takers().values() if not worker.asleep))

    async def _put_to_sleep(self, worker: GeneratorReplica) -> None:
        actor = worker.actor
        assert actor is not None
        worker.ready.clear()
        worker.asleep, worker.version = True, None
        try:
            with self._span(worker.name, "sleep"):
                await call(
                    actor.sleep.remote(next(worker.numbers)), f"{worker.name}.sleep", self._config.heartbeat_timeout_s
                )
        except (RlepError, RayError) as error:
            worker.lose(actor, error)
            ray.kill(actor)  # now: its memory is the learner's

    async def wake(self) -> None:
        """Bring every engine that is asleep to the weights published last."""
        offer, deadline = self.weight_update, self._config.start_deadline_s
        if offer is not None:
            sleepers = [worker for worker in self._takers().values() if worker.asleep]
            await asyncio.gather(*(self._load(worker, offer, deadline) for worker in sleepers))

    def living(self) -> tuple[str, ...]:
        """Names of those that can load weights now; one that was restarted has another name.

        Raises ``ActorLost`` where there never will be any.
        """
        if all(worker.out_of_restarts for worker in self._members()):
            raise nobody_left(self._members())
        return tuple(self._takers())

    def lost(self) -> bool:
        """Whether no generator serves any before the next publication: in a group, one that starts has none until then."""
        return self._config.transfer != "shared_memory" and not any(
            worker.loading.locked() or (worker.version is not None and not worker.lost.is_set())
            for worker in self._staying()
        )

    async def take(self, weight_updates: Mapping[str, WeightUpdate], *, deadline_s: float) -> float:
        """Have these take part in a transfer, each by its own weight update; returns the largest log-prob difference (nats).

        A replica that starts later serves nothing until the next one. Raises ``WeightSyncError`` that names who failed; one that
        is dead or silent is replaced, the others may try again.
        """
        takers = {name: worker for name, worker in self._takers().items() if name in weight_updates}
        for worker in takers.values():
            worker.ready.clear()
            worker.difference = worker.error = None
        await asyncio.gather(*(self._loaded(worker, weight_updates[n], deadline_s) for n, worker in takers.items()))
        differences = {name: takers[name].difference if name in takers else None for name in weight_updates}
        failed = [
            f"{name}: {takers[name].error if name in takers else 'lost'}"
            for name, difference in differences.items()
            if difference is None
        ]
        if failed:
            raise WeightSyncError("; ".join(failed))
        return max(difference for difference in differences.values() if difference is not None)

    def _takers(self) -> dict[str, GeneratorReplica]:
        living = [worker for worker in self._staying() if worker.actor is not None and not worker.lost.is_set()]
        return {f"{worker.name}.{worker.restarts}": worker for worker in living}

    def _staying(self) -> list[GeneratorReplica]:
        return [worker for worker in self._members() if worker.state != "leaving"]

    async def _load(self, worker: GeneratorReplica, weight_update: WeightUpdate, deadline_s: float) -> None:
        actor = worker.actor
        assert actor is not None
        for _ in range(2):  # a refused update is pushed once more before the generator is replaced
            if await self._loaded(worker, weight_update, deadline_s):
                return
        worker.lose(actor, worker.error or ActorLost(worker.name))

    async def _loaded(self, worker: GeneratorReplica, weight_update: WeightUpdate, deadline_s: float) -> bool:
        """Whether it serves the weight update now; a replica that fails in another way than refusing it is lost."""
        async with worker.loading:
            actor = worker.actor
            if actor is None or worker.lost.is_set():
                return False
            try:
                with self._span(worker.name, "load weights"):
                    difference = await call(
                        actor.load.remote(next(worker.numbers), weight_update), f"{worker.name}.load", deadline_s
                    )
            except WeightSyncError as error:
                worker.error = error
                return False
            except (RlepError, RayError) as error:
                worker.lose(actor, error)
                return False
            worker.difference, worker.version, worker.asleep = float(difference), weight_update.version, False
            worker.ready.set()
            return True
