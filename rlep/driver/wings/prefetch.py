"""Rollouts begun before their step: with ``rollout.max_staleness`` = k, up to k of them beside that of the present step.

    step n      update n ────────► publish n+1 ─► step n+1
    answers n+1 ──── version n ────┼─ version n+1 ─►         (k = 1)

The rollout of step n + k begins when step n does, under version n: so it is k versions old at most when it is trained on,
and never more than k + 1 steps' answers are in memory. Its requests, seeds and prompts are those of step n + k; its
replays are drawn when that step begins. What is begun is in no checkpoint: a run that goes back begins it anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from rlep.core.types import Prompt, Trajectory
from rlep.driver.context import Answers, Step
from rlep.driver.rollout import RolloutBars, ended, fresh_answers

Planned = tuple[Step, Sequence[Prompt]]
"""A step that nothing was done for yet, and its prompts."""


class Rollout:
    """A step's answers, written and verified from now on, whenever they are asked for."""

    def __init__(self, step: Step, prompts: Sequence[Prompt]) -> None:
        self.planned: Planned = (step, prompts)
        self._verified: asyncio.Queue[tuple[Prompt, list[Trajectory]] | None] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    @property
    def ready(self) -> int:
        """Prompts whose answers are verified and were not handed out."""
        return self._verified.qsize() - self._writing.done()

    async def answers(self) -> Answers:
        """All of them, each as soon as it is there; raises what ended the rollout."""
        while (answer := await self._verified.get()) is not None:
            yield answer
        await self._writing

    async def end(self) -> None:
        """Let go of what is not finished."""
        await ended(self._writing)

    async def _write(self) -> None:
        try:
            async with aclosing(fresh_answers(*self.planned, RolloutBars(_unseen, _unseen))) as verified:
                async for answer in verified:
                    self._verified.put_nowait(answer)
        finally:
            self._verified.put_nowait(None)


def _unseen(by: int = 1) -> None:
    """Nothing is shown before the step begins."""


class PrefetchedRollouts:
    """The rollouts of the present step and of at most ``limit`` steps after it."""

    def __init__(self, plan: Callable[[int], Planned], *, limit: int, steps: int) -> None:
        """``plan``: a step by its number; ``steps`` of the whole run."""
        self._plan, self._limit, self._steps = plan, limit, steps
        self._rollouts: dict[int, Rollout] = {}

    def step(self, number: int) -> Planned:
        """The step to be made now; its rollout and those that may be begun by now are."""
        if not self._limit:
            return self._plan(number)
        for later in range(number, min(number + self._limit + 1, self._steps)):
            if later not in self._rollouts:
                self._rollouts[later] = Rollout(*self._plan(later))
        self._rollouts = {later: rollout for later, rollout in self._rollouts.items() if later >= number}
        rollout = self._rollouts[number]
        step, prompts = rollout.planned
        step.begun, step.ready = rollout.answers, rollout.ready
        return step, prompts

    async def drop(self) -> None:
        """End all that was begun: the run is over, or goes back to a checkpoint."""
        rollouts, self._rollouts = self._rollouts, {}
        for rollout in rollouts.values():
            await rollout.end()
