"""Bounded staleness: with ``rollout.max_staleness`` = k, the rollouts of up to k later steps run beside the present one.

    step n           update n ────────► publish n+1 ─► step n+1
    rollout n+1 ─── version n ────┼─ version n+1 ─►              (k = 1)

The rollout of step n + k begins with that of step n, under version n: its policy lag is at most k when it is trained on,
and at most k + 1 steps' responses are in memory. Its requests, seeds and prompts are those of step n + k; its replays are
drawn when that step begins. Prefetched rollouts are in no checkpoint: a run that is restored begins them anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from rlep.core.types import Prompt, Trajectory
from rlep.driver.clock import Clock
from rlep.driver.ports import NONE_SPARED, RolloutBars, Rollouts, Spared, Verified


class PrefetchedRollouts:
    """The ``Rollouts`` port: those of the present step and of at most ``limit`` steps after it."""

    def __init__(
        self, inner: Rollouts, prompts_of: Callable[[int], Sequence[Prompt]], *, limit: int, steps: int
    ) -> None:
        """``prompts_of``: a step's prompts by its number; ``steps`` of the whole run."""
        self._inner, self._prompts_of, self._limit, self._steps = inner, prompts_of, limit, steps
        self._begun: dict[int, tuple[Verified, Clock]] = {}

    async def of(
        self, number: int, prompts: Sequence[Prompt], clock: Clock, shown: RolloutBars, spared: Spared = NONE_SPARED
    ) -> AsyncGenerator[tuple[Prompt, list[Trajectory]], None]:
        """See the port."""
        for later in range(number, min(number + self._limit + 1, self._steps)):
            if later not in self._begun:
                begun = Clock()
                asked = prompts if later == number else self._prompts_of(later)
                self._begun[later] = self._inner.of(later, asked, begun, _UNSEEN, spared), begun
        rollout, spent = self._begun.pop(number)
        async with aclosing(rollout):
            async for prompt, members in rollout:
                shown.rollout(len(members))
                shown.verify(len(members))
                yield prompt, members
        for phase, seconds in spent.seconds.items():
            clock.seconds[phase] = clock.seconds.get(phase, 0.0) + seconds

    async def drop(self) -> None:
        """End all that was begun: the run is over, or is restored from a checkpoint."""
        rollouts, self._begun = self._begun, {}
        for rollout, _ in rollouts.values():
            await rollout.aclose()


def _unseen(by: int = 1) -> None:
    """Nothing is shown before the step begins."""


_UNSEEN = RolloutBars(_unseen, _unseen)
