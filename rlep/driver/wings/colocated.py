"""Time-sharing of devices by generators and learner: one side works while the other sleeps without device memory.

    generators │ responses ─► sleep            ┊               load version k+1, serve ─► responses of step k+1
    learner    │              wake ─► score, updates, write version k+1 ─► sleep

The step does not know of it: a call to one side waits until the other side is idle, puts that one to sleep, and begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Generic, Literal, TypeVar, cast

from rlep.core.errors import DeadlineExceeded
from rlep.core.types import Completion, Float32Array, Reissued, Request, Sampling, SequenceBatch, UpdateOutcome
from rlep.driver.ports import Generators, Learner

SideName = Literal["generators", "learner"]
Handing = Callable[[], Awaitable[None]]
_OTHER: dict[SideName, SideName] = {"generators": "learner", "learner": "generators"}


class TimeSharing:
    """Pass the devices between two sides; the learner has them first."""

    def __init__(self, deadline_s: float) -> None:
        """``deadline_s``: longest wait for the devices; it must exceed the longest work of the other side."""
        self._deadline_s = deadline_s
        self._sides: dict[SideName, tuple[Handing, Handing]] = {}
        self._holder: SideName = "learner"
        self._working = 0
        self._idle = asyncio.Event()
        self._passing = asyncio.Lock()

    def join(self, name: SideName, *, sleep: Handing, wake: Handing) -> None:
        """Register a side; both must have joined before the devices are passed on.

        ``sleep`` releases the devices' memory, ``wake`` takes it again and is ready for work; both may be repeated.
        """
        self._sides[name] = sleep, wake

    @asynccontextmanager
    async def of(self, name: SideName, *, wake: bool = True) -> AsyncGenerator[None]:
        """Enter a block of work by one side; further work of the same side may run at the same time and never waits.

        ``wake`` = False: the block itself wakes its side. Raises ``DeadlineExceeded`` when the other side stays busy, and
        what the one side's ``sleep`` or the other's ``wake`` raises: the devices then stay where they were.
        """
        try:
            async with asyncio.timeout(self._deadline_s) as waiting:
                await self._enter(name, wake=wake)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise DeadlineExceeded(
                f"the {name} waited {self._deadline_s:.0f} s for the {_OTHER[name]} to release the devices"
            ) from None
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def _enter(self, name: SideName, *, wake: bool) -> None:
        while True:
            async with self._passing:
                if self._holder == name or not self._working:
                    if self._holder != name:
                        sleep, _ = self._sides[self._holder]
                        await sleep()
                        self._holder = name
                    if wake:
                        await self._sides[name][1]()
                    self._working += 1
                    self._idle.clear()
                    return
            await self._idle.wait()


class TimeSharedGenerators:
    """The ``Generators`` port: a rollout is one piece of work."""

    def __init__(self, inner: Generators, sharing: TimeSharing) -> None:
        self._inner, self._sharing = inner, sharing

    @property
    def reissued(self) -> Reissued:
        """Counts of the generators."""
        return self._inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Generate; the deadline counts from when the generators have the devices."""
        async with self._sharing.of("generators"):
            completions = self._inner.generate(requests, sampling, deadline_s=deadline_s)
            async with aclosing(cast("AsyncGenerator[Completion]", completions)):
                async for completion in completions:
                    yield completion


class TimeSharedLearner:
    """The ``Learner`` port."""

    def __init__(self, inner: Learner, sharing: TimeSharing) -> None:
        self._inner, self._sharing = inner, sharing

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Score while the learner has the devices."""
        async with self._sharing.of("learner"):
            return await self._inner.score(batch, rollout=rollout)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """Update while the learner has the devices."""
        async with self._sharing.of("learner"):
            return await self._inner.update(batch, rollout=rollout, supervised=supervised)

    async def save(self, directory: Path) -> None:
        """Save; the files are written from host memory, whichever side has the devices."""
        async with self._sharing.of("learner"):
            await self._inner.save(directory)

    async def written(self) -> None:
        """Wait for the files, whichever side has the devices."""
        await self._inner.written()

    async def load(self, directory: Path) -> None:
        """Load while the learner has the devices."""
        async with self._sharing.of("learner"):
            await self._inner.load(directory)

    async def restart(self) -> None:
        """Restart with the devices, which the ranks that start wake by themselves."""
        async with self._sharing.of("learner", wake=False):
            await self._inner.restart()


Offer = TypeVar("Offer")


class TimeSharedWeights(Generic[Offer]):
    """The ``Weights`` port: the learner writes the weights before it sleeps, the generators wake with them."""

    def __init__(
        self,
        offer: Callable[[int], Awaitable[Offer]],
        take: Callable[[Offer], Awaitable[float]],
        sharing: TimeSharing,
    ) -> None:
        """``offer`` and ``take``: the two parts of a weight update, one for each side."""
        self._offer, self._take, self._sharing = offer, take, sharing

    async def publish(self, version: int) -> float:
        """Let the learner offer the weights, then the generators take them."""
        async with self._sharing.of("learner"):
            offer = await self._offer(version)
        async with self._sharing.of("generators", wake=False):
            return await self._take(offer)
