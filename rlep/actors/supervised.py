"""One actor that is started again when it is lost.

    method     consumes                     waits for                       unblocked by
    ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
    handle     a restart, after a loss      the start of an actor           ``start``, which has its own deadline
    call       the answers of one method    the answer, and pings           the actor; its deadline; a ping that is not
                                            meanwhile                       answered: then the next actor is called
    replace    a loss                       nothing                         —

``call`` is for methods that are idempotent. Who keeps state beside the actor, or has others to turn to (``GeneratorReplica``,
``WorkerReplica``), uses ``handle``, ``living`` and ``replace``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from rlep.actors.cluster import Report, call
from rlep.actors.replicas import ActorStatus, State
from rlep.core.errors import ActorLost, ConfigError, DeadlineExceeded, RlepError
from rlep.core.waiting import silence

HEARTBEAT_S = 10.0
"""Time between two pings of an actor that is at work."""

GRACE_S = 20.0
"""Time an actor gets to close by itself before it is killed."""


async def watch_call(
    handle: ActorHandle[Any], reference: Any, name: str, method: str, *, deadline_s: float, heartbeat_timeout_s: float
) -> Any:
    """Await a call, as ``call`` does, while the actor's ``ping`` answers; raises what either of them raises."""
    calling = silence(asyncio.create_task(call(reference, f"{name}.{method}", deadline_s)))  # it may fail unlooked at
    try:
        while not (await asyncio.wait({calling}, timeout=min(HEARTBEAT_S, heartbeat_timeout_s)))[0]:
            await call(handle.ping.remote(), f"{name}'s heartbeat", heartbeat_timeout_s)
        return await calling
    except BaseException:
        if ray.is_initialized():  # otherwise Ray says on standard output that it will make the call again
            ray.cancel(reference)
        raise
    finally:
        calling.cancel()


class Supervised:
    """Calls an actor; a lost or silent one is replaced and the call made again, at most ``restarts`` times in all.

    The actor's ``ping`` must answer while another method runs: a running call is watched by it.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[ActorHandle[Any]]],
        *,
        restarts: int,
        heartbeat_timeout_s: float,
        report: Report,
    ) -> None:
        """``heartbeat_timeout_s``: an actor whose ping is not answered for this long is considered dead."""
        self.name = name
        self._report = report
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self.restarts_left = restarts
        self._start = start
        self._handle: ActorHandle[Any] | None = None
        self._starting = asyncio.Lock()
        self.restarts = 0
        self.error = ""
        self.closed = self.out_of_restarts = False
        """``out_of_restarts``: lost, and not started again."""

    @property
    def living(self) -> ActorHandle[Any] | None:
        """The actor, while there is one that is not known to be lost."""
        return self._handle

    async def handle(self) -> ActorHandle[Any]:
        """Return the living actor, started if there is none. A new start that fails costs a restart, and raises why.

        One that a setting forbids costs all of them: it would be forbidden the next time, too.
        """
        async with self._starting:
            if self.closed or self.out_of_restarts:
                raise ActorLost(f"{self.name} was removed" if self.closed else self.error)
            if self._handle is None:
                try:
                    self._handle = await self._start()
                except (RlepError, RayError) as error:
                    if self.restarts:  # the first start is the run's, which ends with it
                        self._spend(error)
                    raise
                if self.restarts:
                    self._report("actor_restarted", self.name, "")
            return self._handle

    async def call(self, method: str, *args: object, deadline_s: float) -> Any:
        """Return the method's result; the deadline holds for each attempt."""
        while True:
            try:
                handle = await self.handle()
            except (ActorLost, DeadlineExceeded):
                if self.closed or self.out_of_restarts or not self.restarts:
                    raise
                continue
            reference = getattr(handle, method).remote(*args)
            try:
                return await watch_call(
                    handle,
                    reference,
                    self.name,
                    method,
                    deadline_s=deadline_s,
                    heartbeat_timeout_s=self._heartbeat_timeout_s,
                )
            except (ActorLost, DeadlineExceeded) as error:
                self.replace(handle, error)

    def replace(self, handle: ActorHandle[Any], error: BaseException) -> None:
        """End a lost actor, so that the next call starts another or raises that no restart is left."""
        if self._handle is not handle:
            return
        ray.kill(handle)
        self._handle = None
        self._spend(error)
        self._report("actor_lost", self.name, self.error)

    def _spend(self, error: BaseException) -> None:
        """Take the next start from the restarts."""
        self.error = str(error)
        if isinstance(error, ConfigError):  # what is wrong will be wrong the next time
            self.out_of_restarts, self.error = True, f"{self.name} cannot be started again: {error}"
            return
        if not self.restarts_left:
            self.out_of_restarts, self.error = True, f"{self.name} was lost and is out of restarts: {error}"
            return
        self.restarts_left -= 1
        self.restarts += 1

    def status(self) -> ActorStatus:
        """Return its row of ``rlep status``."""
        state: State = "lost" if self.out_of_restarts else "placing" if self._handle is None else "serving"
        return ActorStatus(self.name, state, restarts=self.restarts, error=self.error)

    def kill(self) -> None:
        """End the actor's process at once; it is not started again."""
        handle, self._handle, self.closed = self._handle, None, True
        if handle is not None:
            ray.kill(handle)

    async def close(self) -> None:
        """Let the actor close, then end its process; it is not started again."""
        self.closed = True
        handle, self._handle = self._handle, None
        if handle is not None:
            await close_actor(handle, self.name)


async def close_actor(handle: ActorHandle[Any], name: str) -> None:
    """Ask an actor to close and end its process, whether it answers or not."""
    try:
        await call(handle.close.remote(), f"closing {name}", GRACE_S)
    except (ActorLost, DeadlineExceeded):
        pass  # the kill below ends it either way
    finally:
        ray.kill(handle)
