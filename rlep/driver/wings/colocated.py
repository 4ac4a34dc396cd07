"""Turns on devices that generators and learner share: one side works while the other has let go of its memory.

    generators │ answers ─► sleep            ┊                 load version k+1, serve ─► answers of step k+1
    learner    │            wake ─► score, updates, write version k+1 ─► sleep

The step knows nothing of it: who is asked for work while it is the other's turn waits until that has no work left, sends
it to sleep, and begins. So scores begin when the step's last answer is written, whatever was verified before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar, cast

from rlep.core.errors import DeadlineExceeded
from rlep.core.types import Completion, Float32Array, Reissued, Request, Sampling, SequenceBatch, UpdateOutcome
from rlep.driver.ports import Generators, Learner

Turn = Literal["generators", "learner"]
_OTHER: dict[Turn, Turn] = {"generators": "learner", "learner": "generators"}


class Side(Protocol):
    """One of the two; both can be asked for what is already so."""

    async def sleep(self) -> None:
        """Let go of the devices' memory."""
        ...

    async def wake(self) -> None:
        """Take it again, and be ready for work."""
        ...


class Turns:
    """Whose turn it is. The learner has the first one."""

    def __init__(self, deadline_s: float) -> None:
        """``deadline_s``: longest wait for a turn, hence longer than the longest work of the other side."""
        self._deadline_s = deadline_s
        self._sides: dict[Turn, Side] = {}
        self._holder: Turn = "learner"
        self._working = 0
        self._idle = asyncio.Event()
        self._passing = asyncio.Lock()

    def join(self, turn: Turn, side: Side) -> None:
        """Who is meant; both must have joined before the first turn passes."""
        self._sides[turn] = side

    @asynccontextmanager
    async def of(self, turn: Turn, *, wake: bool = True) -> AsyncGenerator[None]:
        """Work within the block; others of the same side may work at the same time, and never wait for the other side.

        ``wake`` = False: the block itself brings its side back to work. Raises ``DeadlineExceeded`` when the turn did not
        come, and what the one side's ``sleep`` or the other's ``wake`` raises: the turn then stays where it was.
        """
        try:
            async with asyncio.timeout(self._deadline_s) as waiting:
                await self._enter(turn, wake=wake)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise DeadlineExceeded(
                f"the {turn} waited {self._deadline_s:.0f} s for the {_OTHER[turn]} to let go of the devices"
            ) from None
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def _enter(self, turn: Turn, *, wake: bool) -> None:
        while True:
            async with self._passing:
                if self._holder == turn or not self._working:
                    if self._holder != turn:
                        await self._sides[self._holder].sleep()
                        self._holder = turn
                    if wake:
                        await self._sides[turn].wake()
                    self._working += 1
                    self._idle.clear()
                    return
            await self._idle.wait()


class TurnGenerators:
    """The ``Generators`` port: a rollout is one piece of work."""

    def __init__(self, inner: Generators, turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self._inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """See the port; the deadline counts from the turn on."""
        async with self._turns.of("generators"):
            answers = self._inner.generate(requests, sampling, deadline_s=deadline_s)
            async with aclosing(cast("AsyncGenerator[Completion]", answers)):
                async for completion in answers:
                    yield completion


class TurnLearner:
    """The ``Learner`` port."""

    def __init__(self, inner: Learner, turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """See the port."""
        async with self._turns.of("learner"):
            return await self._inner.score(batch, rollout=rollout)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """See the port."""
        async with self._turns.of("learner"):
            return await self._inner.update(batch, rollout=rollout, supervised=supervised)

    async def save(self, directory: Path) -> None:
        """See the port. What is taken aside is in host memory: it is written in anybody's turn."""
        async with self._turns.of("learner"):
            await self._inner.save(directory)

    async def written(self) -> None:
        """See the port."""
        await self._inner.written()

    async def load(self, directory: Path) -> None:
        """See the port."""
        async with self._turns.of("learner"):
            await self._inner.load(directory)

    async def restart(self) -> None:
        """See the port."""
        async with self._turns.of("learner", wake=False):
            await self._inner.restart()


Offer = TypeVar("Offer")


class Handover(Protocol[Offer]):
    """A publication in two parts, of which each belongs to one side."""

    async def offer(self, version: int) -> Offer: ...

    async def take(self, offer: Offer) -> float: ...


class TurnWeights(Generic[Offer]):
    """The ``Weights`` port: the learner writes in its turn, the generators wake up with what it wrote."""

    def __init__(self, inner: Handover[Offer], turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    async def publish(self, version: int) -> float:
        """See the port."""
        async with self._turns.of("learner"):
            offer = await self._inner.offer(version)
        async with self._turns.of("generators", wake=False):
            return await self._inner.take(offer)
