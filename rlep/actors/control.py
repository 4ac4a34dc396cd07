"""Control of a run in progress by another process: a mailbox actor in its namespace, and the driver that answers it.

    rlep scale … ─► ControlActor.ask ─► Control (in the driver) ─► Generators, Verifiers, Environments
                                  ◄──── RunStatus or the reason ◄──┘

    loop                          consumes                    waits for                       unblocked by
    ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    RunClient.ask (their side)    one answer                  the driver, to its deadline     ``ControlActor.answer``
    ControlActor.next             commands of the mailbox     a command, for 20 s             ``ControlActor.ask``
    Control._listen (driver)      commands                    ``next``                        a command; the loss of the mailbox
    Control._answer (each)        one command                 the role that changes           actors that started, or were drained

Commands are idempotent: each states the desired state, not a change.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from rlep.actors.cluster import Cluster, call
from rlep.actors.replicas import RoleStatus
from rlep.actors.run_progress import ElasticRole, RunProgress
from rlep.actors.supervised import Supervised
from rlep.config.roles import ActorConfig
from rlep.core.errors import ActorLost, ConfigError, DeadlineExceeded, PlacementError, RlepError
from rlep.metrics.spans import Span, StepBreakdown

if TYPE_CHECKING:  # ``rlep status`` needs neither
    from rlep.actors.generators import GeneratorPool
    from rlep.actors.worker_role import WorkerRole

ACTOR_NAME = "control"
ROLE = ActorConfig(cpus=0)
POLL_S = 20.0
"""The driver asks for commands again after this time; a command that comes meanwhile is handed over at once."""
MOST_OPEN = 64
"""Commands that may wait for an answer at once."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Bring a role to ``count`` actors; those that are drained get ``grace_s`` seconds for what they hold."""

    role: ElasticRole
    count: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain one actor within about ``grace_s`` seconds."""

    actor: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """Ask for the status, and nothing else."""

    spans: bool = False
    """With the timeline."""


Command = Scale | Drain | Look


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as it is now."""

    run: str
    roles: tuple[RoleStatus, ...]
    progress: RunProgress = RunProgress()  # noqa: RUF009 - it is frozen
    last_step: StepBreakdown | None = None
    """Time of the last whole step by who used it."""
    spans: tuple[Span, ...] = ()
    """The newest of the timeline, where it was asked for."""


@ray.remote(num_cpus=0)
class ControlActor:
    """Commands on their way to the driver, and its answers on their way back."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[str, Command]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[RunStatus]] = {}

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def close(self) -> None:
        """End nothing."""

    async def ask(self, identity: str, command: Command) -> RunStatus:
        """Return the driver's answer; the same ``identity`` is one command. Raises the driver's refusal."""
        if identity not in self._answers:
            if sum(not answer.done() for answer in self._answers.values()) >= MOST_OPEN:
                raise ConfigError(f"{MOST_OPEN} commands wait for an answer already")
            for old in [key for key, answer in self._answers.items() if answer.done()][:-MOST_OPEN]:
                del self._answers[old]
            self._answers[identity] = asyncio.get_running_loop().create_future()
            self._asked.put_nowait((identity, command))
        return await asyncio.shield(self._answers[identity])

    # It waits when the run ends, and Ray would tell the user of every call that it repeats.
    @ray.method(max_task_retries=0)
    async def next(self, wait_s: float) -> tuple[str, Command] | None:
        """Return the next command, or None when none came within ``wait_s``."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._asked.get()
        except TimeoutError:
            return None

    async def answer(self, identity: str, answer: RunStatus | RlepError) -> None:
        """Answer a command."""
        waiting = self._answers.get(identity)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, RlepError):
            waiting.set_exception(answer)
            waiting.exception()  # looked at: whoever asked may have ended
        else:
            waiting.set_result(answer)


class Control:
    """The driver's end: carries commands out and returns the status or the reason why not."""

    def __init__(
        self,
        cluster: Cluster,
        elastic: Mapping[ElasticRole, GeneratorPool | WorkerRole[Any]],
        watched: Sequence[Callable[[], RoleStatus]],
        progress: Callable[[], RunProgress],
    ) -> None:
        """``watched``: the status of the roles whose number is fixed; ``progress``: the run's progress."""
        self._run = cluster.namespace.removeprefix("rlep-")
        self._elastic, self._watched, self._progress = elastic, watched, progress

        async def start() -> ActorHandle[Any]:
            return await cluster.place(ControlActor, ACTOR_NAME, ROLE)

        self._report, self._timeline = cluster.report, cluster.timeline
        self._actor = Supervised(ACTOR_NAME, start, restarts=3, heartbeat_timeout_s=60, report=cluster.report)
        self._listening: asyncio.Task[None] | None = None
        self._doing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises ``PlacementError`` when another run of that name is in progress."""
        await self._actor.handle()
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop what is being done, and listen no more."""
        tasks = [*self._doing, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._actor.close()

    def status(self, *, spans: bool = False) -> RunStatus:
        """Return the run as it is now."""
        roles = self.roles()
        working = [
            actor.name
            for role in roles
            for actor in role.actors
            if role.role != "learner" and actor.state == "serving"  # its ranks have one track together
        ]
        return RunStatus(
            self._run,
            roles,
            self._progress(),
            self._timeline.last_step(working),
            self._timeline.spans if spans else (),
        )

    def roles(self) -> tuple[RoleStatus, ...]:
        """Return the actors of every role."""
        return (*(role.status() for role in self._elastic.values()), *(status() for status in self._watched))

    async def do(self, command: Command) -> RunStatus:
        """Carry a command out; returns the status after it. Raises the reason it cannot be carried out."""
        if isinstance(command, Scale):
            role = self._elastic.get(command.role)
            if role is None:
                raise ConfigError(f"{self._run} has no {command.role}")
            await role.scale(command.count, command.grace_s)
        elif isinstance(command, Drain):
            kind = command.actor.rpartition("-")[0]
            role = next((role for role in self._elastic.values() if role.status().role == kind), None)
            if role is None:
                raise ConfigError(f"{command.actor} cannot be drained: only generators, verifiers and environments can")
            await role.drain(command.actor, command.grace_s)
        return self.status(spans=isinstance(command, Look) and command.spans)

    async def _listen(self) -> None:
        """Carry out commands until the mailbox is lost for good: the run continues without it."""
        while True:
            try:
                asked = await self._actor.call("next", POLL_S, deadline_s=POLL_S + 60)
            except (RlepError, RayError) as error:
                self._report("actor_lost", ACTOR_NAME, f"the run takes no more commands: {error}")
                return
            if asked is not None:
                task = asyncio.create_task(self._answer(*asked))
                self._doing.add(task)
                task.add_done_callback(self._doing.discard)

    async def _answer(self, identity: str, command: Command) -> None:
        answer: RunStatus | RlepError
        try:
            answer = await self.do(command)
        except RlepError as error:
            answer = error
        except RayError as error:
            answer = PlacementError(f"{type(error).__name__}: {error}")
        with suppress(ActorLost):  # with the mailbox went whoever waited at it; the loss is reported
            await self._actor.call("answer", identity, answer, deadline_s=60)


class RunClient:
    """Another process's end: a run on a connected cluster, asked for its status or for a change."""

    def __init__(self, cluster: Cluster) -> None:
        """Look the run up once: where the cluster has ended, Ray looks for a minute and then ends this process.

        Raises ``ConfigError`` where no such run is in progress.
        """
        self._run = cluster.namespace.removeprefix("rlep-")
        try:
            self._control = ray.get_actor(ACTOR_NAME, namespace=cluster.namespace)
        except ValueError:
            going = sorted(
                found["namespace"].removeprefix("rlep-")
                for found in ray.util.list_named_actors(all_namespaces=True)
                if found["name"] == ACTOR_NAME
            )
            there = ", ".join(going) or "none"
            raise ConfigError(f"no run {self._run} is in progress on this cluster; there: {there}") from None

    async def ask(self, command: Command, *, deadline_s: float) -> RunStatus:
        """Have the run do something; returns its status afterwards, or raises the reason why not.

        Raises ``DeadlineExceeded`` where its driver does not answer, ``ActorLost`` where the run ended meanwhile.
        """
        asked = self._control.ask.remote(uuid.uuid4().hex, command)
        try:
            status: RunStatus = await call(asked, f"run {self._run}", deadline_s)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"the driver of {self._run} has not answered {command} within {deadline_s:.0f} s; "
                "repeating it does no harm"
            ) from None
        except RayError as error:
            raise ActorLost(f"run {self._run}: {type(error).__name__}: {error}") from None
        return status
