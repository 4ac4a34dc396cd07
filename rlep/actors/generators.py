"""Generators: each vLLM engine in its own actor, pulling requests from one queue, so that their number may differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from rlep.actors.cluster import Cluster, call
from rlep.actors.colocation import GUEST, Colocated
from rlep.actors.generator_actor import GeneratorActor
from rlep.actors.generator_replica import GeneratorReplica, nobody_left
from rlep.actors.placement import BundleSlot
from rlep.actors.replica_weights import EngineWeights
from rlep.actors.replicas import ActorStatus, ReplicaSet, RoleStatus
from rlep.actors.supervised import HEARTBEAT_S, close_actor
from rlep.actors.work_queue import GenerateCall, WorkQueue
from rlep.config.schema import Config
from rlep.core.errors import ActorLost, ConfigError, DeadlineExceeded, RlepError, WeightsLost
from rlep.core.types import Completion, Reissued, Request, Sampling

WAITING = 4
"""An engine is given 1/4 more requests than it decodes at once: it takes the next without waiting for the driver."""
REFILL = 8
"""It is given more when 1/8 of its requests have finished: each refill costs a call."""


class GeneratorPool:
    """All generators of a run behind the driver's ``Generators`` port."""

    def __init__(
        self,
        cluster: Cluster,
        config: Config,
        model: Path,
        *,
        lease_s: float,
        shared: Colocated | None = None,
    ) -> None:
        """``lease_s``: see ``GeneratorConfig.lease``; ``shared``: where they share their devices with the learner."""
        self._cluster, self._config, self._run, self._model = cluster, config.generator, config, model
        self._shared = shared
        self._report, self._span = cluster.report, cluster.timeline.span
        self._queue = WorkQueue(lease_s)
        self._replicas = ReplicaSet(
            "generator", lambda name: GeneratorReplica(name, config.generator.restarts), self._join, self._leave
        )
        self.weights = EngineWeights(lambda: self._workers, self._span, config.generator)
        """The policy version they serve: loading it, sleep and wake."""
        self._version: int | None = None
        self._streams: set[asyncio.Task[None]] = set()

    async def start(self, *, base_version: int | None = None) -> None:
        """Start all engines; ``base_version`` serves the model directory's weights as that policy version."""
        self._version = base_version
        await self._replicas.start(self._config.count)

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self._queue.reissued

    async def scale(self, count: int, grace_s: float) -> None:
        """See ``ReplicaSet.scale``. Raises ``ConfigError`` where their number is that of the learner's devices."""
        self._check_elastic()
        await self._replicas.scale(count, grace_s)

    async def drain(self, name: str, grace_s: float) -> None:
        """See ``ReplicaSet.drain``. Raises ``ConfigError`` where their number is that of the learner's devices."""
        self._check_elastic()
        await self._replicas.drain(name, grace_s)

    def _check_elastic(self) -> None:
        if self._shared is not None:
            raise ConfigError(
                'cluster.placement = "colocated": there are as many generators as learner devices for them'
            )

    def status(self) -> RoleStatus:
        """What every generator does now."""
        return RoleStatus("generator", tuple(map(self._status_of, self._workers)), self._queue.waiting, self.reissued)

    def _status_of(self, worker: GeneratorReplica) -> ActorStatus:
        return ActorStatus(
            worker.name,
            "lost" if worker.out_of_restarts and worker.state != "leaving" else worker.state,
            version=worker.version,
            in_flight=self._queue.leased(worker.name),
            tokens_per_second=worker.rate.per_second(),
            restarts=worker.restarts,
            error=self._shortfall() if worker.state == "placing" else str(worker.error or ""),
        )

    def _shortfall(self) -> str:
        """What a generator that is not placed yet waits for."""
        return self._cluster.waits_for(self._config) if self._shared is None else "waits for the learner's devices"

    @property
    def _workers(self) -> list[GeneratorReplica]:
        return self._replicas.members

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Exactly one completion per request, each as it finishes; see the port."""
        if all(worker.out_of_restarts for worker in self._workers):
            raise nobody_left(self._workers)
        job = self._queue.put(requests, sampling)
        self._check_weights()
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
            ) from None
        finally:
            held = self._queue.cancel(job)
            for worker in self._workers:
                if worker.name in held:
                    worker.freed.set()  # its cancelled requests may never be reported back
                    if worker.actor is not None:
                        worker.actor.abandon.remote(held[worker.name])

    async def close(self) -> None:
        """End all engines."""
        tasks = [*self._streams, *(worker.supervisor for worker in self._workers if worker.supervisor is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        living = [(worker.actor, worker.name) for worker in self._workers if worker.actor is not None]
        for worker in self._workers:
            worker.actor = None
        await asyncio.gather(*(close_actor(actor, name) for actor, name in living))
        for worker in self._workers:
            self._cluster.forget(worker.name)

    async def _join(self, worker: GeneratorReplica) -> None:
        """Bring a new generator to the current weights, then let it work."""
        try:
            await self._start(worker)
        except BaseException:
            self._cluster.forget(worker.name)
            self._check_others(worker)
            raise
        worker.supervisor = asyncio.create_task(self._supervise(worker))
        self._report("actor_started", worker.name, "")

    async def _leave(self, worker: GeneratorReplica, grace_s: float) -> None:
        """Let a generator finish what it holds, for ``grace_s`` seconds at most; others do the rest."""
        worker.state = "leaving"
        if worker.supervisor is not None:
            worker.supervisor.cancel()
            await asyncio.wait({worker.supervisor})
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._queue.leased(worker.name) and not worker.lost.is_set():
                    worker.freed.clear()
                    await worker.freed.wait()
        back = self._queue.give_back(worker.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.transfer_deadline_s), worker.loading:
                pass  # in a group the others wait for it, to the end of a transfer
        actor, worker.actor = worker.actor, None
        if actor is not None and back:
            ray.kill(actor)
        elif actor is not None:
            await close_actor(actor, worker.name)
        self._cluster.forget(worker.name)
        self._check_weights()
        self._report("actor_drained", worker.name, f"{back} requests handed back" if back else "")

    async def _start(self, worker: GeneratorReplica) -> None:
        worker.lost, worker.freed, worker.ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
        worker.state, worker.asleep = "placing", False
        async with nullcontext() if self._shared is None else self._shared.starting():
            await self._started(worker)

    async def _place(self, worker: GeneratorReplica) -> ActorHandle[Any]:
        given = (self._model, self._run, self._cluster.home)
        if self._shared is not None:
            devices, slot = await self._shared.devices_of(worker.name), self._shared.slot_of(worker.name)
            return await self._cluster.place(GeneratorActor, worker.name, GUEST, *given, devices, slot=slot)
        slot = BundleSlot(self._cluster.reserve(worker.name, [self._config]))
        return await self._cluster.place(GeneratorActor, worker.name, self._config, *given, slot=slot)

    async def _started(self, worker: GeneratorReplica) -> None:
        deadline = self._config.start_deadline_s
        actor = await self._place(worker)
        worker.state = "starting"
        try:
            with self._span(worker.name, "start"):
                await call(actor.start.remote(next(worker.numbers), deadline), f"starting {worker.name}", deadline + 10)
            if self.weights.weight_update is None and self._version is not None:
                await call(actor.serve_base.remote(self._version), f"{worker.name}.serve_base", deadline)
                worker.version = self._version
                worker.ready.set()
            served, difference = None, None
            while served is not self.weights.weight_update:  # another may have been published meanwhile
                served = self.weights.weight_update
                difference = await call(
                    actor.load.remote(next(worker.numbers), served), f"{worker.name}.load", deadline
                )
        except BaseException:
            ray.kill(actor)
            raise
        if served is not None:
            worker.difference, worker.version = difference, served.version
            worker.ready.set()
        worker.actor, worker.state = actor, "serving"

    async def _supervise(self, worker: GeneratorReplica) -> None:
        while True:
            assert worker.actor is not None
            tasks = [asyncio.create_task(work(worker, worker.actor)) for work in (self._pump, self._watch)]
            try:
                await worker.lost.wait()
            finally:
                for task in tasks:
                    task.cancel()
            await self._retire(worker)
            if not await self._revive(worker):
                return

    async def _retire(self, worker: GeneratorReplica) -> None:
        self._report("actor_lost", worker.name, str(worker.error))
        if worker.actor is not None:
            ray.kill(worker.actor)
        worker.actor = worker.version = None
        self._queue.give_back(worker.name)
        if worker.restarts_left:
            self._check_weights()

    async def _revive(self, worker: GeneratorReplica) -> bool:
        """Start a lost generator again; False when it is out of restarts."""
        while worker.restarts_left:
            worker.restarts_left -= 1
            worker.restarts += 1
            try:
                await self._start(worker)
            except (RlepError, RayError) as error:
                worker.error = error
            else:
                self._report("actor_restarted", worker.name, "")
                return True
        self._cluster.forget(worker.name)
        self._check_others(worker)
        return False

    def _check_others(self, worker: GeneratorReplica) -> None:
        """End the rollout when ``worker`` was the last hope."""
        if all(other.out_of_restarts for other in self._workers if other is not worker):
            self._queue.fail(nobody_left(self._workers))
        self._check_weights()

    def _check_weights(self) -> None:
        """End the rollouts that wait for a publication, which waits for them."""
        if self._version is None and self.weights.lost():
            reason = next((f": {w.name}: {w.error}" for w in self._workers if w.error), "")
            self._queue.fail(WeightsLost(f"no generator has the policy's weights any more{reason}"))

    async def _pump(self, worker: GeneratorReplica, actor: ActorHandle[Any]) -> None:
        """Keep the engine full, with some requests waiting in it, from the queue."""
        while True:
            await worker.ready.wait()
            await self._queue.changed(worker.name)
            if not worker.ready.is_set():
                continue
            living = sum(other.ready.is_set() and not other.lost.is_set() for other in self._workers)
            most = self._config.max_sequences
            slots = min(self._queue.share(living), most + most // WAITING)
            free = slots - self._queue.leased(worker.name)
            if free < max(1, slots // REFILL):
                worker.freed.clear()
                await worker.freed.wait()
                continue
            taken = self._queue.take(worker.name, free)
            if taken is not None:
                self._streams.add(stream := asyncio.create_task(self._stream(worker, actor, *taken)))
                stream.add_done_callback(self._streams.discard)

    async def _stream(
        self, worker: GeneratorReplica, actor: ActorHandle[Any], job: GenerateCall, requests: list[Request]
    ) -> None:
        generate = actor.generate.options(num_returns="streaming")
        try:
            with self._span(worker.name, "generate", len(requests)):
                async for reference in generate.remote(requests, job.sampling):
                    for completion in await reference:
                        if self._queue.finish(worker.name, job, completion):
                            worker.rate.add(len(completion.tokens))
                    worker.freed.set()
                    self._stop_superseded()
            self._queue.give_back(worker.name, [request.id for request in requests])  # what it ended without
            worker.freed.set()
        except ActorUnavailableError:  # a message was lost: the actor may live
            await self._take_back(worker, actor, [request.id for request in requests])
        except RayTaskError as error:
            worker.lose(actor, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            worker.lose(actor, ActorLost(f"{worker.name}: {type(error).__name__}"))

    async def _take_back(self, worker: GeneratorReplica, actor: ActorHandle[Any], requests: list[str]) -> None:
        """Stop what a generator still holds of a call that broke, and queue it again; one that is not reached is lost."""
        try:
            await call(actor.abandon.remote(requests), f"{worker.name}.abandon", self._config.heartbeat_timeout_s)
        except (RlepError, RayError) as error:
            worker.lose(actor, error)
        else:
            self._queue.give_back(worker.name, requests)
            worker.freed.set()

    def _stop_superseded(self) -> None:
        """Stop generators on requests that another finished; one that is not reached keeps its requests and gets no others."""
        held = self._queue.superseded()
        for worker in self._workers:
            if worker.name in held and worker.actor is not None:
                stopping = asyncio.create_task(self._stop(worker, worker.actor, held[worker.name]))
                self._streams.add(stopping)
                stopping.add_done_callback(self._streams.discard)

    async def _stop(self, worker: GeneratorReplica, actor: ActorHandle[Any], requests: list[str]) -> None:
        with suppress(RlepError, RayError):
            await call(actor.abandon.remote(requests), f"{worker.name}.abandon", self._config.heartbeat_timeout_s)
            self._queue.stopped(worker.name, requests)
            worker.freed.set()

    async def _watch(self, worker: GeneratorReplica, actor: ActorHandle[Any]) -> None:
        """Replace a generator that is silent or whose engine is dead."""
        while True:
            await asyncio.sleep(min(HEARTBEAT_S, self._config.heartbeat_timeout_s))
            try:
                await call(actor.health.remote(), f"{worker.name}.health", self._config.heartbeat_timeout_s)
            except (RlepError, RayError) as error:
                worker.lose(actor, error)
                return
