"""Environment actors: each supervises its own killable worker processes, and has the episodes that were begun on it.

    begin, act, end ─► ask ─► one message to the actor for all that is asked in a round of the event loop ─► answers

    loop          consumes                    waits for                     unblocked by
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    begin         an actor that serves        one of them, as it is         join, _revive; the last one is lost
    _exchange     the answers to a message    the first, and a little       the actor; its loss, by a ping
                                              for others
    _revive       a loss                      the start of an actor         its deadline; no restart is left

An episode stays on its actor: one that is lost, or killed as it leaves, takes its episodes with it, which are ``crashed``. Ray
makes a call again whose message was lost, but a turn is acted once: the calls of an episode are numbered, and ``Once`` keeps the
answer to the last.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from rlep.actors.cluster import Cluster
from rlep.actors.once import Once
from rlep.actors.replicas import Changes
from rlep.actors.supervised import watch_call
from rlep.actors.worker_role import WorkerParts, WorkerReplica, WorkerRole
from rlep.config.environment import EnvironmentConfig
from rlep.core.episodes import Action, Observation
from rlep.core.errors import ActorLost, RlepError
from rlep.core.types import Verdict
from rlep.core.waiting import silence
from rlep.services.environment.digest import verifier_name
from rlep.services.environment.local import LocalEnvironments
from rlep.services.worker.source import source_digest

BATCH = 64
"""Calls in one message: enough to make the message itself cheap, few enough to be answered together."""
SOON_S = 0.01
"""Time in which others of a message may be answered after the first; the rest is asked for again."""

Call = tuple[int, int, str, tuple[Any, ...]]
"""Number of the episode, number of the call in it, verb of the port, and what that takes."""


@ray.remote(concurrency_groups={"health": 1})
class EnvironmentActor:
    """One process with environments in workers."""

    def __init__(self) -> None:
        self._starting = Once()
        self._calls: dict[int, Once] = {}

    @ray.method(concurrency_group="health")
    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def start(self, config: EnvironmentConfig, idle_s: float) -> Sequence[Mapping[str, object]]:
        """Start the worker processes, once; returns the tools. ``idle_s``: as of ``LocalEnvironments``."""
        tools: Sequence[Mapping[str, object]] = await self._starting(0, partial(self._start, config, idle_s))
        return tools

    async def _start(self, config: EnvironmentConfig, idle_s: float) -> Sequence[Mapping[str, object]]:
        environments = LocalEnvironments(config, idle_s=idle_s)
        await environments.start()
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "begin": lambda episode, columns, seed: environments.begin(episode, columns, seed=seed),
            "act": environments.act,
            "end": environments.end,
        }
        self._close = environments.close
        return environments.tools

    async def answer(self, calls: Sequence[Call], over: Sequence[int]) -> dict[int, Any]:
        """Carry out each call once, and return the answers that are there soon, by the call's place.

        ``over``: episodes whose end has been answered.
        """
        for episode in over:
            self._calls.pop(episode, None)
        asked = [self._begin(*call) for call in calls]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(asked, timeout=SOON_S)
        return {place: one.result() for place, one in enumerate(asked) if one.done()}

    def _begin(self, episode: int, number: int, verb: str, given: tuple[Any, ...]) -> asyncio.Future[Any]:
        once = self._calls.setdefault(episode, Once())
        return once.begin(number, partial(self._verbs[verb], *given))

    async def close(self) -> None:
        """End the worker processes."""
        self._close()


@dataclass(eq=False, slots=True)
class _Asked:
    """A call that is not answered."""

    call: Call
    answer: asyncio.Future[Any]


class EnvironmentReplica(WorkerReplica):
    """The driver's side of one actor, and what its episodes ask."""

    HELD: ClassVar[str] = "episode"
    LEFT: ClassVar[str] = "crashed"

    def __init__(self, name: str, parts: WorkerParts, answer_s: float) -> None:
        """``answer_s``: longest wait for an answer."""
        super().__init__(name, parts)
        self._answer_s = answer_s
        self._unsent: list[_Asked] = []
        self._over: list[int] = []
        """Episodes that have ended since the last message."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._open, self._since = 0, 0.0
        """Calls that are not answered, and the time since when there are some."""

    def ask(self, handle: ActorHandle[Any], call: Call) -> asyncio.Future[Any]:
        """Ask the actor on which an episode was begun. The answer may be ``ActorLost``."""
        loop = asyncio.get_running_loop()
        asked = _Asked(call, silence(loop.create_future()))
        if handle is not self.actor.living:
            self._fail([asked])
            return asked.answer
        if not self._unsent:
            loop.call_soon(self._send)
        if not self._open:
            self._since = self.parts.cluster.timeline.now()
        self._open += 1
        asked.answer.add_done_callback(self._answered)
        self._unsent.append(asked)
        return asked.answer

    async def close(self) -> None:
        """End it with the run."""
        for task in self._tasks:
            task.cancel()
        await super().close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answered(self, _: object) -> None:
        self._open -= 1
        if not self._open:
            self.parts.cluster.timeline.add(self.name, "act", self._since)

    def _fail(self, calls: Sequence[_Asked]) -> None:
        for asked in calls:
            if not asked.answer.done():
                asked.answer.set_exception(ActorLost(f"{self.name} was lost: {self.actor.error or 'it was removed'}"))

    def _send(self) -> None:
        handle, unsent = self.actor.living, self._unsent
        self._unsent = []
        if handle is None:
            self._fail(unsent)
            return
        for start in range(0, len(unsent), BATCH):
            over, self._over = self._over, []
            self._spawn(self._exchange(handle, unsent[start : start + BATCH], over))

    async def _exchange(self, handle: ActorHandle[Any], calls: Sequence[_Asked], over: Sequence[int]) -> None:
        """Have calls answered, each as soon as it is; the actor is lost where it does not."""
        try:
            while calls:
                answers = await watch_call(
                    handle,
                    handle.answer.remote([asked.call for asked in calls], over),
                    self.name,
                    "answer",
                    deadline_s=self._answer_s,
                    heartbeat_timeout_s=self.parts.config.heartbeat_timeout_s,
                )
                for place, answer in answers.items():
                    episode, _, verb, _ = calls[place].call
                    if verb == "end":
                        self._over.append(episode)
                    if not calls[place].answer.done():  # nobody may wait any more
                        calls[place].answer.set_result(answer)
                # An act that nobody waits for is not asked again: another episode may have the name by then.
                calls, over = (
                    [
                        asked
                        for place, asked in enumerate(calls)
                        if place not in answers and (asked.call[2] == "end" or not asked.answer.done())
                    ],
                    (),
                )
        except (RlepError, RayError) as error:
            self.lose(handle, error)
            self._fail(calls)
        finally:
            for asked in calls:
                asked.answer.cancel()

    def lose(self, handle: ActorHandle[Any], error: BaseException) -> None:
        """Take an actor that is dead or silent out of service, with its episodes, and start another."""
        if handle is not self.actor.living:
            return
        super().lose(handle, error)
        unsent, self._unsent = self._unsent, []
        self._fail(unsent)
        self.busy = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an episode is."""

    number: int
    """Of the episode: no other has it, also where one of the same name begins again."""
    replica: EnvironmentReplica
    handle: ActorHandle[Any]
    calls: Iterator[int]

    def ask(self, verb: str, *given: Any) -> asyncio.Future[Any]:
        """Ask its actor. The answer may be ``ActorLost``."""
        return self.replica.ask(self.handle, (self.number, next(self.calls), verb, given))

    def free(self) -> None:
        """Count it no more."""
        if self.handle is self.replica.actor.living:
            self.replica.busy -= 1
            self.replica.parts.freed.tell()


class EnvironmentPool(WorkerRole[EnvironmentReplica]):
    """All environments of a run behind the driver's ``Environments`` port."""

    def __init__(self, cluster: Cluster, config: EnvironmentConfig, *, idle_s: float) -> None:
        """``idle_s``: an episode that has no call for so long is forgotten. Raises ConfigError where the class is not here."""
        assert config.factory is not None
        parts = WorkerParts(cluster, config, EnvironmentActor, (config, idle_s), Changes())
        super().__init__("environment", parts, lambda name, parts: EnvironmentReplica(name, parts, idle_s))
        self._name = verifier_name(config.factory)
        self._digest = source_digest(config.factory, "environment.factory")
        self._places: dict[str, _Place] = {}
        self._numbers = itertools.count()

    @property
    def tools(self) -> Sequence[Mapping[str, object]]:
        """JSON schemas of the tools; empty where the class has ``step``."""
        schemas: Sequence[Mapping[str, object]] = self._replicas.members[0].told
        return schemas

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        """Begin an episode on the actor with the fewest; on another where that is lost meanwhile.

        One of the same name is forgotten. Raises ``ActorLost`` where all are out of restarts.
        """
        self._forget(episode)
        while True:
            replica = await self._free_replica()
            assert replica.actor.living is not None
            number, calls = next(self._numbers), itertools.count()
            place = self._places[episode] = _Place(number, replica, replica.actor.living, calls)
            with suppress(ActorLost):
                observed: Observation = await place.ask("begin", episode, columns, seed)
                return observed

    async def act(self, episode: str, action: Action) -> Observation:
        """Answer a turn; ``crashed`` where its actor is lost."""
        place = self._places.get(episode)
        if place is None:
            return Observation(
                status="crashed", reason=f"there is no episode {episode}: it was not begun, or was ended"
            )
        try:
            observed: Observation = await place.ask("act", episode, action)
        except ActorLost as error:
            return Observation(status="crashed", reason=str(error))
        return observed

    async def end(self, episode: str) -> Verdict | None:
        """Forget an episode; return its environment's verdict, that of its failure, or None."""
        place = self._places.pop(episode, None)
        if place is None:
            return None
        try:
            verdict: Verdict | None = await place.ask("end", episode)
        except ActorLost as error:  # its environment has not judged it
            return Verdict("crashed", None, self._name, self._digest, "gate", reason=str(error))
        finally:
            place.free()
        return verdict

    def _forget(self, episode: str) -> None:
        place = self._places.pop(episode, None)
        if place is not None:
            place.ask("end", episode)
            place.free()
