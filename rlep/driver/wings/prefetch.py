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

from rlep.config.schema import Config
from rlep.core.types import Prompt, Request, Trajectory
from rlep.driver.clock import Clock
from rlep.driver.ports import RolloutBars, Rollouts, Verified
from rlep.driver.rollout import training_requests


class PrefetchedRollouts:
    """The ``Rollouts`` port: those of the present step and of at most ``rollout.max_staleness`` steps after it."""

    def __init__(self, inner: Rollouts, config: Config, prompts_of: Callable[[int], Sequence[Prompt]]) -> None:
        """``prompts_of``: a step's prompts by its number."""
        self._inner, self._config, self._prompts_of = inner, config, prompts_of
        self._begun: dict[int, tuple[Verified, Clock]] = {}

    async def of(
        self, step: int, prompts: Sequence[Prompt], requests: Sequence[Request], clock: Clock, shown: RolloutBars
    ) -> AsyncGenerator[tuple[Prompt, list[Trajectory]], None]:
        """Begin the rollouts within the bound, and yield that of ``step``."""
        last = min(step + self._config.rollout.max_staleness, self._config.run.steps - 1)
        if step not in self._begun:
            self._begin(step, prompts, requests)
        for later in range(step + 1, last + 1):
            if later not in self._begun:
                asked = self._prompts_of(later)
                self._begin(later, asked, training_requests(self._config, later, asked))
        rollout, spent = self._begun.pop(step)
        async with aclosing(rollout):
            async for prompt, members in rollout:
                shown.rollout(len(members))
                shown.verify(len(members))
                yield prompt, members
        for phase, seconds in spent.seconds.items():
            clock.seconds[phase] = clock.seconds.get(phase, 0.0) + seconds

    def _begin(self, step: int, prompts: Sequence[Prompt], requests: Sequence[Request]) -> None:
        spent = Clock()
        self._begun[step] = self._inner.of(step, prompts, requests, spent, _UNSEEN), spent

    async def drop(self) -> None:
        """End all that was begun: the run is over, or is restored from a checkpoint."""
        rollouts, self._begun = self._begun, {}
        for rollout, _ in rollouts.values():
            await rollout.aclose()


def _show_nothing(_: int) -> None:
    """Move no bar: the step has not begun."""


_UNSEEN = RolloutBars(_show_nothing, _show_nothing)
