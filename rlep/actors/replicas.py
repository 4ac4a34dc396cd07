"""Who works in an elastic role: members come and go while the run goes on, and never under a name that was used before."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from rlep.core.errors import ConfigError, PlacementError
from rlep.core.types import Reissued

State = Literal["placing", "starting", "serving", "leaving", "lost"]
"""``placing``: waits for room on the cluster. ``lost``: dead, and its restarts are spent."""

RATE_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """What is known of one actor."""

    name: str
    state: State
    version: int | None = None
    """Policy version it serves; None for roles that serve none, and before the handshake."""
    in_flight: int = 0
    """Requests (generator) or calls (verifier) it holds."""
    tokens_per_second: float | None = None
    """Response tokens it delivered over the last half minute."""
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


class Member(Protocol):
    """One worker of a crew."""

    name: str

    @property
    def spent(self) -> bool:
        """Whether it is dead for good."""
        ...


M = TypeVar("M", bound=Member)


class Crew(Generic[M]):
    """The members of one role. Every change is idempotent and waits for the one before it."""

    def __init__(
        self,
        kind: str,
        hire: Callable[[str], M],
        join: Callable[[M], Awaitable[None]],
        leave: Callable[[M, float], Awaitable[None]],
    ) -> None:
        """``join`` starts a member that ``hire`` made; ``leave`` ends one, within so many seconds for its work."""
        self.kind = kind
        self._hire, self._join, self._leave = hire, join, leave
        self._members: dict[str, M] = {}
        self._numbers = itertools.count()
        self._gone: set[str] = set()
        self._turn = asyncio.Lock()

    @property
    def members(self) -> list[M]:
        """Everybody who was hired and is not gone, oldest first."""
        return list(self._members.values())

    def hire(self, count: int) -> list[M]:
        """``count`` more members, not started yet."""
        names = [f"{self.kind}-{next(self._numbers)}" for _ in range(count)]
        hired = [self._hire(name) for name in names]
        self._members.update(zip(names, hired, strict=True))
        return hired

    async def start(self, count: int) -> None:
        """Hire the first ``count`` members; raises what the first of them fails with, and then none is on its way."""
        reasons, _ = await self._bring(self.hire(count))
        if reasons:
            raise reasons[0]

    async def scale(self, count: int, grace_s: float) -> None:
        """Bring the crew to ``count`` living members; the newest leave first, with ``grace_s`` seconds to finish.

        Raises ``PlacementError`` with the reason as soon as a newcomer fails; those that have come by then stay.
        """
        if count < 1:
            raise ConfigError(f"a run needs at least one {self.kind}")
        async with self._turn:
            dead = [member.name for member in self.members if member.spent]
            newcomers = self.hire(max(0, count - len(self._members) + len(dead)))
            await asyncio.gather(*(self._part(name, 0) for name in dead))
            reasons, absent = await self._bring(newcomers)
            if reasons:
                what = f"{absent} of {len(newcomers)} newcomers did not come"
                raise PlacementError(f"{what}: {reasons[0]}") from reasons[0]
            await asyncio.gather(*(self._part(name, grace_s) for name in list(self._members)[count:]))

    async def drain(self, name: str, grace_s: float) -> None:
        """Let one member leave; nothing happens where it has left before.

        Raises ``ConfigError`` where there is no such member, or no other one.
        """
        async with self._turn:
            if name in self._gone:
                return
            if name not in self._members:
                raise ConfigError(f"there is no {name}; there are {', '.join(self._members)}")
            if all(member.spent for member in self.members if member.name != name):
                raise ConfigError(f"{name} is the only {self.kind}: add another first")
            await self._part(name, grace_s)

    async def _bring(self, newcomers: Sequence[M]) -> tuple[list[BaseException], int]:
        """Once one fails, only those that have come by then stay; why, and how many did not come."""
        joining = {one.name: asyncio.ensure_future(self._join(one)) for one in newcomers}
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

    async def _part(self, name: str, grace_s: float) -> None:
        await self._leave(self._members[name], grace_s)
        del self._members[name]
        self._gone.add(name)
