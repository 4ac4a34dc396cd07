"""The replicas of an elastic role, created and removed during a run; no name is used twice."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rlep.core.errors import ConfigError, PlacementError
from rlep.core.types import Reissued

State = Literal["placing", "starting", "serving", "leaving", "lost"]
"""``placing``: waits for its resources on the cluster. ``lost``: dead, and out of restarts."""

RATE_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """One actor's row of ``rlep status``."""

    name: str
    state: State
    version: int | None = None
    """Policy version it serves; None for roles that serve none, and before the first log-prob check."""
    in_flight: int = 0
    """Requests (generator), calls (verifier) or episodes (environment) it holds."""
    tokens_per_second: float | None = None
    """Response tokens it delivered over the last half minute."""
    kv_use: float | None = None
    """Largest share of a generator's KV cache in use over its last heartbeat, about 10 s; None before the first."""
    preempted: int | None = None
    """Requests that it set back for lack of KV cache so far, and computed again; None for other roles."""
    restarts: int = 0
    error: str = ""
    """Its last error, or what it lacks while it is ``placing``."""


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """All actors of one role, and the work that none of them holds yet."""

    role: str
    actors: tuple[ActorStatus, ...]
    backlog: int = 0
    reissued: Reissued = Reissued()  # noqa: RUF009 - it is frozen


class Rate:
    """An amount per second over the last ``RATE_WINDOW_S`` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._amounts: deque[tuple[float, int]] = deque()

    def add(self, amount: int) -> None:
        """Count ``amount`` as of now."""
        self._amounts.append((self._clock(), amount))
        self._forget()

    def per_second(self) -> float:
        """The rate now."""
        self._forget()
        seconds = min(RATE_WINDOW_S, self._clock() - self._begun)
        return sum(amount for _, amount in self._amounts) / seconds if seconds > 0 else 0.0

    def _forget(self) -> None:
        while self._amounts and self._amounts[0][0] <= self._clock() - RATE_WINDOW_S:
            self._amounts.popleft()


class Changes:
    """Changes that somebody waits for; whoever makes one tells."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Have all who wait look again."""
        self._event.set()

    async def next(self) -> None:
        """Wait for a change from now on."""
        self._event.clear()
        await self._event.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``, looking after every change."""
        while not holds():
            await self.next()


class Replica(ABC):
    """One actor of a replica set, as the driver sees it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def out_of_restarts(self) -> bool:
        """True once it is dead and will not be started again."""

    @abstractmethod
    async def join(self) -> None:
        """Start it and let it work; raises why it cannot start."""

    @abstractmethod
    async def leave(self, grace_s: float) -> None:
        """End it, after ``grace_s`` seconds at most for what it holds; others do the rest."""


M = TypeVar("M", bound=Replica)


class ReplicaSet(Generic[M]):
    """The replicas of one role. Every change is idempotent and waits for the one before it."""

    def __init__(self, kind: str, create: Callable[[str], M]) -> None:
        """``create`` makes a replica of a name, which is not started yet."""
        self.kind, self._create = kind, create
        self._members: dict[str, M] = {}
        self._numbers = itertools.count()
        self._removed: set[str] = set()
        self._changing = asyncio.Lock()

    @property
    def members(self) -> list[M]:
        """Every replica that was created and not removed, oldest first."""
        return list(self._members.values())

    def named(self, name: str) -> M | None:
        """Return the replica of this name; None where it was removed."""
        return self._members.get(name)

    def create(self, count: int) -> list[M]:
        """Add ``count`` replicas, not started yet."""
        names = [f"{self.kind}-{next(self._numbers)}" for _ in range(count)]
        created = [self._create(name) for name in names]
        self._members.update(zip(names, created, strict=True))
        return created

    async def start(self, count: int) -> None:
        """Create and start the first ``count`` replicas; raises what the first of them fails with, and then starts none."""
        reasons, _ = await self._start_all(self.create(count))
        if reasons:
            raise reasons[0]

    async def scale(self, count: int, grace_s: float) -> None:
        """Bring the set to ``count`` living replicas; the newest are drained first, with ``grace_s`` seconds to finish.

        Raises ``PlacementError`` with the reason as soon as a new replica fails; those that have started by then stay.
        """
        if count < 1:
            raise ConfigError(f"a run needs at least one {self.kind}")
        async with self._changing:
            dead = [member.name for member in self.members if member.out_of_restarts]
            added = self.create(max(0, count - len(self._members) + len(dead)))
            await asyncio.gather(*(self._remove(name, 0) for name in dead))
            reasons, absent = await self._start_all(added)
            if reasons:
                what = f"{absent} of {len(added)} new {self.kind}s did not start"
                raise PlacementError(f"{what}: {reasons[0]}") from reasons[0]
            await asyncio.gather(*(self._remove(name, grace_s) for name in list(self._members)[count:]))

    async def drain(self, name: str, grace_s: float) -> None:
        """Drain one replica; one that was removed before is left alone.

        Raises ``ConfigError`` where there is no such replica, or no other one.
        """
        async with self._changing:
            if name in self._removed:
                return
            if name not in self._members:
                raise ConfigError(f"there is no {name}; there are {', '.join(self._members)}")
            if all(member.out_of_restarts for member in self.members if member.name != name):
                raise ConfigError(f"{name} is the only {self.kind}: add another first")
            await self._remove(name, grace_s)

    async def _start_all(self, added: Sequence[M]) -> tuple[list[BaseException], int]:
        """Start new replicas. Once one fails, only those that have started by then stay; the reasons, and how many did not."""
        joining = {replica.name: asyncio.ensure_future(replica.join()) for replica in added}
        try:
            if joining:
                await asyncio.wait(joining.values(), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in joining.values():
                task.cancel()
            await asyncio.gather(*joining.values(), return_exceptions=True)
            absent = [name for name, task in joining.items() if task.cancelled() or task.exception()]
            for name in absent:
                del self._members[name]
        errors = [task.exception() for task in joining.values() if not task.cancelled()]
        return [error for error in errors if error is not None], len(absent)

    async def _remove(self, name: str, grace_s: float) -> None:
        await self._members[name].leave(grace_s)
        del self._members[name]
        self._removed.add(name)
