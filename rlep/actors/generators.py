"""Generators: each vLLM engine in its own actor, pulling requests from one queue, so that their number may differ."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from rlep.actors.cluster import Cluster, call
from rlep.actors.supervised import HEARTBEAT_S, close_actor
from rlep.actors.work_queue import Job, WorkQueue
from rlep.config_roles import GeneratorConfig
from rlep.engines.sampler import Sampler, SamplerHealth, SamplerOptions, prepare_environment
from rlep.engines.segment import Publication
from rlep.errors import ActorLost, DeadlineExceeded, RlepError, WeightSyncError
from rlep.types import Completion, Request, Sampling


@ray.remote
class GeneratorActor:
    """One engine. A dead engine ends the actor, so that its supervisor sees it."""

    def __init__(self, model: Path, options: SamplerOptions, runtime_parent: Path | None) -> None:
        prepare_environment(options, runtime_parent)
        self._sampler = Sampler(model, options)

    async def ping(self) -> int:
        """The process id."""
        return os.getpid()

    async def start(self, deadline_s: float) -> None:
        """Load the model."""
        await self._sampler.start(deadline_s)

    async def serve_base(self, version: int) -> None:
        """Serve the weights loaded from the model directory as policy ``version``."""
        self._sampler.serve_base(version)

    async def load(self, publication: Publication) -> float:
        """Take over published weights and confirm them by log-probs; returns the largest gap."""
        await self._sampler.load_weights(publication)
        return await self._sampler.confirm(publication)

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[list[Completion]]:
        """Stream finished completions in small lists."""
        async for finished in self._sampler.generate(requests, sampling):
            yield finished

    async def health(self) -> SamplerHealth:
        """What the engine itself says; fails when it is dead."""
        return await self._sampler.health()

    async def close(self) -> None:
        """End the engine's processes."""
        await self._sampler.close()


class Worker:
    """The driver's side of one generator: its actor while it lives, and what it may still take."""

    def __init__(self, name: str, restarts: int) -> None:
        self.name = name
        self.restarts_left = restarts
        self.actor: ActorHandle[Any] | None = None
        self.lost = asyncio.Event()
        self.room = asyncio.Event()
        self.error: Exception | None = None
        self.gap: float | None = None
        """Log-prob gap (nats) of its last confirmed weights; None while it has not taken the present publication."""

    def lose(self, error: Exception) -> None:
        """Take the generator out of service."""
        self.error = error
        self.lost.set()
        self.room.set()


class Generators:
    """All generators of a run behind the driver's ``Generators`` port."""

    def __init__(self, cluster: Cluster, config: GeneratorConfig, model: Path, options: SamplerOptions) -> None:
        self._cluster, self._config, self._model, self._options = cluster, config, model, options
        self._report = cluster.report
        self._queue = WorkQueue()
        self._workers = [Worker(f"generator-{index}", config.restarts) for index in range(config.count)]
        self._publication: Publication | None = None
        self._version: int | None = None
        self._supervisors: list[asyncio.Task[None]] = []
        self._streams: set[asyncio.Task[None]] = set()

    async def start(self, *, base_version: int | None = None) -> None:
        """Start all engines; ``base_version`` serves the model directory's weights as that policy version."""
        self._version = base_version
        await asyncio.gather(*(self._start(worker) for worker in self._workers))
        self._supervisors = [asyncio.create_task(self._supervise(worker)) for worker in self._workers]

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float, in_flight: int | None = None
    ) -> AsyncIterator[Completion]:
        """Exactly one completion per request, each as it finishes; see the port."""
        if self._supervisors and all(task.done() for task in self._supervisors):
            raise ActorLost(f"no generator is left; {self._workers[0].name}: {self._workers[0].error}")
        job = self._queue.put(requests, sampling, in_flight)
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
            self._queue.cancel(job)

    async def publish(self, publication: Publication, *, deadline_s: float) -> float:
        """Bring every living generator to the published weights; returns the largest log-prob gap (nats).

        A generator that refuses twice is replaced. Raises ``WeightSyncError`` when none took the weights.
        """
        self._publication = publication
        for worker in self._workers:
            worker.gap = None
        living = [worker for worker in self._workers if worker.actor is not None and not worker.lost.is_set()]
        await asyncio.gather(*(self._load(worker, deadline_s) for worker in living))
        begun = time.monotonic()
        while all(worker.gap is None for worker in self._workers):  # all lost: one that is started again will do
            error = next((worker.error for worker in self._workers if worker.error), None)
            if all(task.done() for task in self._supervisors) or time.monotonic() - begun > deadline_s:
                raise WeightSyncError(f"no generator took policy version {publication.version}: {error}")
            await asyncio.sleep(0.1)
        return max(worker.gap for worker in self._workers if worker.gap is not None)

    async def close(self) -> None:
        """End all engines."""
        for task in (*self._supervisors, *self._streams):
            task.cancel()
        await asyncio.gather(*self._supervisors, *self._streams, return_exceptions=True)
        await asyncio.gather(*(close_actor(w.actor, w.name) for w in self._workers if w.actor is not None))

    async def _load(self, worker: Worker, deadline_s: float) -> None:
        for _ in range(2):  # a refused update is pushed once more before the generator is given up
            try:
                gap = await call(worker.actor.load.remote(self._publication), f"{worker.name}.load", deadline_s)  # type: ignore[union-attr]
            except WeightSyncError as error:
                worker.error = error
            except (RlepError, RayError) as error:
                worker.error = error
                break
            else:
                worker.gap = float(gap)
                return
        worker.lose(worker.error or ActorLost(worker.name))

    async def _start(self, worker: Worker) -> None:
        worker.lost, worker.room = asyncio.Event(), asyncio.Event()
        deadline = self._config.start_deadline_s
        actor = await self._cluster.place(
            GeneratorActor, worker.name, self._config, self._model, self._options, self._cluster.home
        )
        try:
            await call(actor.start.remote(deadline), f"starting {worker.name}", deadline + 10)
            served: Publication | None = None
            while served is not self._publication:  # another may have been published meanwhile
                served = self._publication
                worker.gap = await call(actor.load.remote(served), f"{worker.name}.load", deadline)
            if served is None and self._version is not None:
                await call(actor.serve_base.remote(self._version), f"{worker.name}.serve_base", deadline)
        except BaseException:
            ray.kill(actor)
            raise
        worker.actor = actor

    async def _supervise(self, worker: Worker) -> None:
        while True:
            tasks = [asyncio.create_task(self._pump(worker)), asyncio.create_task(self._watch(worker))]
            try:
                await worker.lost.wait()
            finally:
                for task in tasks:
                    task.cancel()
            await self._retire(worker)
            if not await self._revive(worker):
                return

    async def _retire(self, worker: Worker) -> None:
        self._report("actor_lost", worker.name, str(worker.error))
        if worker.actor is not None:
            ray.kill(worker.actor)
        worker.actor = None
        self._queue.give_back(worker.name)

    async def _revive(self, worker: Worker) -> bool:
        """Start a lost generator again; False when its restarts are spent."""
        while worker.restarts_left:
            worker.restarts_left -= 1
            try:
                await self._start(worker)
            except (RlepError, RayError) as error:
                worker.error = error
            else:
                self._report("actor_restarted", worker.name, "")
                return True
        if all(other.actor is None for other in self._workers):
            self._queue.fail(ActorLost(f"no generator is left; {worker.name}: {worker.error}"))
        return False

    async def _pump(self, worker: Worker) -> None:
        """Keep the generator's slots filled from the queue."""
        while True:
            await self._queue.changed()
            living = sum(other.actor is not None and not other.lost.is_set() for other in self._workers)
            slots = min(self._queue.share(living) or sys.maxsize, self._config.max_sequences)
            free = slots - self._queue.leased(worker.name)
            if free < max(1, slots // 4):
                worker.room.clear()
                await worker.room.wait()
                continue
            taken = self._queue.take(worker.name, free)
            if taken is not None:
                stream = asyncio.create_task(self._stream(worker, *taken))
                self._streams.add(stream)
                stream.add_done_callback(self._streams.discard)

    async def _stream(self, worker: Worker, job: Job, requests: list[Request]) -> None:
        generate = worker.actor.generate.options(num_returns="streaming")  # type: ignore[union-attr]
        try:
            async for reference in generate.remote(requests, job.sampling):
                for completion in await reference:
                    self._queue.finish(job, completion)
                worker.room.set()
        except RayTaskError as error:
            worker.lose(error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            worker.lose(ActorLost(f"{worker.name}: {type(error).__name__}"))

    async def _watch(self, worker: Worker) -> None:
        """Replace a generator that is silent or whose engine is dead."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await call(worker.actor.health.remote(), f"{worker.name}.health", self._config.silence_s)  # type: ignore[union-attr]
            except (RlepError, RayError) as error:
                worker.lose(error)
                return
