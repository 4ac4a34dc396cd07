"""One generator: its actor, which is started again when it is lost, the weights it serves and the requests it holds.

    loop    consumes                        waits for                            unblocked by
    ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    _live   losses                          LOST                                 lose: by any of the others, or a load
    _feed   requests of the queue           SERVING; a request; 1/8 of its       load; put, give_back, the end of a lease;
                                            slots                                _read, stop
    _read   the completions of one call     the next completions                 the actor; its loss
    _beat   the answers of ``health``       10 s between two                     the clock

Only the methods here change ``state``:

    PLACING ─► STARTING ─► UP ◄─► SERVING ─► ASLEEP ─► SERVING …        any ─► LOST ─► PLACING …        any ─► LEAVING
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from rlep.actors.cluster import Cluster, call
from rlep.actors.colocation import GUEST, Colocated
from rlep.actors.generator_actor import GeneratorActor
from rlep.actors.placement import BundleSlot
from rlep.actors.replicas import ActorStatus, Changes, Rate, Replica, State
from rlep.actors.supervised import HEARTBEAT_S, Supervised
from rlep.actors.work_queue import QueuedRequest, WorkQueue
from rlep.config.schema import Config
from rlep.core.errors import ActorLost, ConfigError, ModelError, RlepError, WeightSyncError
from rlep.engines.sampler.engine import SamplerHealth
from rlep.engines.weights.weight_update import BroadcastGroup, WeightUpdate

WAITING = 4
"""An engine is given 1/4 more requests than it decodes at once: it takes the next without waiting for the driver."""
REFILL = 8
"""It is given more when 1/8 of its requests have finished: each refill costs a call."""


class GeneratorState(Enum):
    """Stages of a generator."""

    PLACING = "placing"  # waits for its resources on the cluster
    STARTING = "starting"  # loads the model
    UP = "up"  # serves nothing: it has no weights so far, or takes part in a transfer
    SERVING = "serving"  # serves the policy version of its last confirmed weights
    ASLEEP = "asleep"  # has freed its device's memory; the next weights wake it
    LEAVING = "leaving"  # finishes what it holds, and takes no more
    LOST = "lost"  # has no actor: it is started again, or is out of restarts


SHOWN: dict[GeneratorState, State] = {
    GeneratorState.UP: "serving",
    GeneratorState.ASLEEP: "serving",
    GeneratorState.LOST: "placing",
}
"""Words of ``rlep status`` for stages that only the driver knows."""


@dataclass(slots=True)
class Fleet:
    """Parts that all generators of a run share."""

    cluster: Cluster
    config: Config
    model: Path
    queue: WorkQueue
    colocated: Colocated | None  # where they share their devices with the learner
    settle: Callable[
        [], None
    ]  # stop work that nobody needs, end rollouts that cannot finish: called after every change
    serving: int = 0
    """Generators that take requests now; kept by ``GeneratorReplica``, for it is asked often."""
    weights: WeightUpdate | int | None = None
    """Weights for a generator that starts: the last publication through shared memory, or the model directory's under that
    version. In a group it has none until the next transfer."""
    kv_use: float | None = None
    """Largest share of a KV cache in use since ``GeneratorPool.cache_metrics`` was last asked; None without a heartbeat."""
    preempted: int = 0
    """Requests set back for lack of KV cache, by all that there are and were."""


class GeneratorReplica(Replica):
    """One generator."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        super().__init__(name)
        self._fleet, self._config = fleet, fleet.config.generator
        self.actor = Supervised(
            name,
            self._start,
            restarts=self._config.restarts,
            heartbeat_timeout_s=self._config.heartbeat_timeout_s,
            report=fleet.cluster.report,
        )
        self.state = GeneratorState.PLACING
        self.version: int | None = None
        """Policy version of its last confirmed weights; None while it has none."""
        self.error = ""
        """Its last loss, or the last refusal of weights."""
        self._served: tuple[WeightUpdate, float] | None = None
        self._kv_use: float | None = None
        self._preempted = 0
        self._rate = Rate()
        self._loading = asyncio.Lock()
        self._numbers = itertools.count()
        self._changes = Changes()
        self._life: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def holder(self) -> str:
        """Name of its present actor in the queue and in a group: one that is started again has another."""
        return f"{self.name}.{self.actor.restarts}"

    @property
    def out_of_restarts(self) -> bool:
        """True once it never serves again."""
        return self.actor.out_of_restarts or self.actor.closed or (self._life is not None and self._life.done())

    @property
    def has_weights(self) -> bool:
        """True while it serves a policy version, or may after the transfer that it takes part in."""
        return self._loading.locked() or self.version is not None

    @property
    def free(self) -> int:
        """The number of requests that it takes at once; 0 where it has too many, or serves none.

        Turns of its own episodes, which it has in its prefix cache, need neither wait for others nor be its part of all requests.
        """
        if self.state is not GeneratorState.SERVING:
            return 0
        queue, most = self._fleet.queue, self._config.max_sequences
        # None wait where new weights do not wait for responses: the check of their log-probs would wait behind them.
        waiting = 0 if self._fleet.config.on_update == "keep" else most // WAITING
        slots = min(queue.share(self._fleet.serving), most + waiting)
        held = queue.count_leased(self.holder)
        free = slots - held
        own = min(queue.count_turns(self.holder), most - held)
        return free if free >= max(1, slots // REFILL) else max(own, 0)

    def look(self) -> None:
        """Have it look again whether it takes more: there are more requests, of which it has a part."""
        self._changes.tell()

    def status(self) -> ActorStatus:
        """Return its row of ``rlep status``. Only of a replica that is not placed is Ray's head asked what it lacks."""
        lost = self.out_of_restarts and self.state is not GeneratorState.LEAVING
        state = "lost" if lost else SHOWN.get(self.state) or cast(State, self.state.value)
        return ActorStatus(
            self.name,
            state,
            version=self.version,
            in_flight=self._fleet.queue.count_leased(self.holder),
            tokens_per_second=self._rate.per_second(),
            kv_use=self._kv_use,
            preempted=self._preempted,
            restarts=self.actor.restarts,
            error=self._waits_for() if state == "placing" else self.error,
        )

    def _waits_for(self) -> str:
        fleet = self._fleet
        if fleet.colocated is not None:
            return "waits for the learner's devices"
        return fleet.cluster.waits_for(fleet.config.generator)

    async def join(self) -> None:
        """Start it and let it work; raises why it cannot start."""
        try:
            await self._bring_up()
        except BaseException:
            self._enter(GeneratorState.LOST)
            self.actor.kill()
            self._fleet.cluster.forget(self.name)
            self._fleet.settle()
            raise
        self._life = asyncio.create_task(self._live())
        self._life.add_done_callback(self._end)
        self._fleet.cluster.report("actor_started", self.name, "")

    async def leave(self, grace_s: float) -> None:
        """Finish what it holds, for ``grace_s`` seconds at most, and end; others do the rest."""
        fleet, queue = self._fleet, self._fleet.queue
        self._enter(GeneratorState.LEAVING)
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._changes.until(
                    lambda: not queue.count_leased(self.holder) or self.state is GeneratorState.LOST
                )
        back = queue.give_back(self.holder)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.transfer_deadline_s), self._loading:
                pass  # in a group the others wait for it, to the end of a transfer
        if back:
            self.actor.kill()
        else:
            await self.actor.close()
        fleet.cluster.forget(self.name)
        fleet.settle()
        fleet.cluster.report("actor_drained", self.name, f"{back} requests handed back" if back else "")

    async def close(self) -> None:
        """End it with the run."""
        tasks = [*self._calls, *([] if self._life is None else [self._life])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.actor.close()
        self._fleet.cluster.forget(self.name)

    async def load(self, weight_update: WeightUpdate, deadline_s: float) -> float:
        """Load weights and serve them; returns the mean log-prob difference (nats).

        Raises ``WeightSyncError`` where it refuses them, and ``ModelError`` where they are another model's. One that fails
        otherwise is lost, and its error is raised.
        """
        if isinstance(weight_update.source, BroadcastGroup) and self.state is GeneratorState.SERVING:
            self._enter(GeneratorState.UP)  # a transfer that breaks leaves it without weights
        async with self._loading:
            actor = self.actor.living
            if actor is None:
                raise ActorLost(f"{self.name} is lost: {self.error}")
            try:
                with self._span("load weights"):
                    difference = await self._load(actor, weight_update, deadline_s)
            except (WeightSyncError, ModelError) as error:
                self.error = str(error)
                raise
            except (RlepError, RayError) as error:
                self.lose(actor, error)
                raise
            if self.actor.living is not actor:
                raise ActorLost(f"{self.name} was lost as it loaded weights: {self.error}")
            self._serve(weight_update, difference)
        return difference

    async def load_or_lose(self, weight_update: WeightUpdate, deadline_s: float) -> None:
        """Load weights; a refused update is pushed once more before the generator is replaced.

        Raises ``ModelError`` where they are another model's: no other generator would take them.
        """
        for last in (False, True):
            actor = self.actor.living
            try:
                await self.load(weight_update, deadline_s)
            except WeightSyncError as error:
                if last and actor is not None:
                    self.lose(actor, error)
            except ModelError:
                raise
            except (RlepError, RayError):
                return  # it is lost
            else:
                return

    def difference(self, weight_update: WeightUpdate) -> float | None:
        """Return the log-prob difference with which it confirmed just this update."""
        return self._served[1] if self._served is not None and self._served[0] is weight_update else None

    async def sleep(self) -> None:
        """Free its device's memory; one that cannot is killed, for its memory is the learner's now."""
        actor = self.actor.living
        if actor is None or self.state is GeneratorState.ASLEEP:
            return
        self._enter(GeneratorState.ASLEEP)
        self.version = self._served = None
        try:
            with self._span("sleep"):
                sleeping = actor.sleep.remote(next(self._numbers))
                await call(sleeping, f"{self.name}.sleep", self._config.heartbeat_timeout_s)
        except (RlepError, RayError) as error:
            self.lose(actor, error)

    def lose(self, actor: ActorHandle[Any], error: BaseException) -> None:
        """Take an actor that is dead, silent or of no use out of service; one that was replaced before is left alone."""
        if actor is not self.actor.living:
            return
        self._fleet.queue.give_back(self.holder)
        self._drop(error)
        self.actor.replace(actor, error)
        self._fleet.settle()

    def stop(self, requests: Sequence[str]) -> None:
        """Stop it on requests that nobody waits for any more; until it says so it is given no others in place of them."""
        if (actor := self.actor.living) is not None:
            self._spawn(actor, self._stop(actor, self.holder, requests))

    def _drop(self, error: BaseException) -> None:
        self.version = self._served = None
        self.error = str(error)
        self._enter(GeneratorState.LOST)

    async def _bring_up(self) -> None:
        self._enter(GeneratorState.PLACING)
        colocated = self._fleet.colocated
        async with nullcontext() if colocated is None else colocated.starting():
            await self.actor.handle()

    async def _start(self) -> ActorHandle[Any]:
        """Place an actor, load the model and what it is to serve."""
        deadline_s = self._config.start_deadline_s
        actor = await self._place()
        self._enter(GeneratorState.STARTING)
        try:
            with self._span("start"):
                starting = actor.start.remote(next(self._numbers), deadline_s)
                await call(starting, f"starting {self.name}", deadline_s + 10)
            await self._take_up(actor, deadline_s)
        except BaseException:
            ray.kill(actor)
            raise
        return actor

    async def _place(self) -> ActorHandle[Any]:
        fleet = self._fleet
        given = (fleet.model, fleet.config, fleet.cluster.home)
        if fleet.colocated is not None:
            devices, slot = await fleet.colocated.devices_of(self.name), fleet.colocated.slot_of(self.name)
            return await fleet.cluster.place(GeneratorActor, self.name, GUEST, *given, devices, slot=slot)
        slot = BundleSlot(fleet.cluster.reserve(self.name, [self._config]))
        return await fleet.cluster.place(GeneratorActor, self.name, self._config, *given, slot=slot)

    async def _take_up(self, actor: ActorHandle[Any], deadline_s: float) -> None:
        weights = self._fleet.weights
        if weights is None:
            self._enter(GeneratorState.UP)
        elif isinstance(weights, int):
            await call(actor.serve_base.remote(weights), f"{self.name}.serve_base", deadline_s)
            self.version = weights
            self._enter(GeneratorState.SERVING)
        else:
            try:
                self._serve(weights, await self._load(actor, weights, deadline_s))
            except ConfigError as error:
                # The weights may be of a learner that was lost with its node, as this one's predecessor.
                raise WeightSyncError(str(error)) from None
        if weights is not self._fleet.weights:  # others were published meanwhile
            await self._take_up(actor, deadline_s)

    async def _load(self, actor: ActorHandle[Any], weight_update: WeightUpdate, deadline_s: float) -> float:
        loading = actor.load.remote(next(self._numbers), weight_update)
        return float(await call(loading, f"{self.name}.load", deadline_s))

    def _serve(self, weight_update: WeightUpdate, difference: float) -> None:
        self._served, self.version = (weight_update, difference), weight_update.version
        self._enter(GeneratorState.SERVING)

    def _enter(self, state: GeneratorState) -> None:
        if self.state is not GeneratorState.LEAVING or state is GeneratorState.LOST:  # a load does not call it back
            self._fleet.serving += (state is GeneratorState.SERVING) - (self.state is GeneratorState.SERVING)
            self.state = state
        self._changes.tell()

    async def _live(self) -> None:
        """Feed and watch one actor after the other, until it is out of restarts."""
        while not self.actor.out_of_restarts:
            if (actor := self.actor.living) is None:
                try:
                    await self._bring_up()
                except (RlepError, RayError) as error:
                    self._drop(error)
                continue
            loops = [self._spawn(actor, loop(actor)) for loop in (self._feed, self._beat)]
            try:
                await self._changes.until(lambda: self.state is GeneratorState.LOST)
            finally:
                for task in loops:
                    task.cancel()
                await asyncio.gather(*loops, return_exceptions=True)

    def _end(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled():
            self.error = str(life.exception() or self.error)
            self._fleet.cluster.forget(self.name)
            self._fleet.settle()

    def _spawn(self, actor: ActorHandle[Any], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(partial(self._fail, actor))
        return task

    def _fail(self, actor: ActorHandle[Any], task: asyncio.Task[None]) -> None:
        """Lose a generator one of whose loops ended in an error that none of them expects: it would hold its work for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.lose(actor, error)

    async def _feed(self, actor: ActorHandle[Any]) -> None:
        """Keep the engine full, with some requests waiting in it, from the queue."""
        queue, holder = self._fleet.queue, self.holder
        while True:
            await self._changes.until(lambda: self.state is GeneratorState.SERVING)
            await queue.wait_for_work(holder)
            if self.state is not GeneratorState.SERVING:
                continue
            if not (free := self.free):
                await self._changes.next()
            elif taken := queue.take(holder, free):
                self._spawn(actor, self._read(actor, holder, taken))

    async def _read(self, actor: ActorHandle[Any], holder: str, taken: Sequence[QueuedRequest]) -> None:
        """Deliver the completions of one call; what it ends without is given out again."""
        queue, identities = self._fleet.queue, [entry.request.id for entry in taken]
        jobs = {entry.request.id: entry.job for entry in taken}
        generate = actor.generate.options(num_returns="streaming")
        try:
            with self._span("generate", len(taken)):
                async for reference in generate.remote([entry.request for entry in taken], taken[0].job.sampling):
                    for completion in await reference:
                        if queue.finish(holder, jobs[completion.request_id], completion):
                            self._rate.add(len(completion.tokens))
                    self._changes.tell()
                    self._fleet.settle()
        except ActorUnavailableError:  # a message was lost: the actor may live, and is stopped before others begin
            try:
                await self._abandon(actor, identities)
            except (RlepError, RayError) as error:
                self.lose(actor, error)
        except RayTaskError as error:
            self.lose(actor, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            self.lose(actor, ActorLost(f"{self.name}: {type(error).__name__}"))
        finally:
            queue.give_back(holder, identities)
            self._changes.tell()

    async def _stop(self, actor: ActorHandle[Any], holder: str, requests: Sequence[str]) -> None:
        with suppress(RlepError, RayError):
            await self._abandon(actor, requests)
            self._fleet.queue.release(holder, requests)
        self._changes.tell()

    async def _abandon(self, actor: ActorHandle[Any], requests: Sequence[str]) -> None:
        await call(actor.abandon.remote(requests), f"{self.name}.abandon", self._config.heartbeat_timeout_s)

    async def _beat(self, actor: ActorHandle[Any]) -> None:
        """Lose a generator that is silent or whose engine is dead."""
        while True:
            await asyncio.sleep(min(HEARTBEAT_S, self._config.heartbeat_timeout_s))
            try:
                health = await call(actor.health.remote(), f"{self.name}.health", self._config.heartbeat_timeout_s)
            except (RlepError, RayError) as error:
                self.lose(actor, error)
                return
            self._note(health)

    def _note(self, health: SamplerHealth) -> None:
        fleet = self._fleet
        self._kv_use = health.kv_use
        self._preempted += health.preempted
        fleet.kv_use = max(fleet.kv_use or 0.0, health.kv_use)
        fleet.preempted += health.preempted

    def _span(self, what: str, count: int = 0) -> AbstractContextManager[None]:
        return self._fleet.cluster.timeline.span(self.name, what, count)
