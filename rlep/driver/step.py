"""One training step of RLEP (arXiv 2507.07451, section 3.2), with everything that may overlap overlapping.

    prompts ─► generate G each ─► verify ─┐
       └─────► draw ≤ M replays ──────────┴► mix ─► score at θ0 ─► P/B updates ─► publish version k+1
               (runs meanwhile)              whole groups, set by set, while later groups are generated

With ``update.stream`` the updates begin meanwhile too: set i as soon as it is scored and set i-1 was updated on. Every
rollout and every old log-prob is still θ0's, because generators change weights only at the end and the learner keeps θ0.
The step returns only after every generator has confirmed version k+1, so step k+1 samples from it and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from rlep.algorithms.advantages import group_advantages, leave_one_out_advantages, zero_variance
from rlep.algorithms.old_logprobs import old_logprobs
from rlep.algorithms.packing import sequence_batch
from rlep.algorithms.selection import ReplaySchedule
from rlep.algorithms.shaping import Rewards, Shaping, rewards, status_rewards
from rlep.config.schema import Config
from rlep.core.types import Float32Array, Float64Array, Group, Int64Array, Prompt, SequenceBatch, UpdateOutcome
from rlep.driver.context import Step
from rlep.driver.rollout import ended, mixed_groups
from rlep.driver.wings.refill import refilled


@dataclass(frozen=True, slots=True, eq=False)
class UpdateSet:
    """The whole groups of one optimizer update, ready to train on."""

    groups: tuple[Group, ...]
    rewards: Rewards
    batch: SequenceBatch
    """With old log-probs."""
    current_logprobs: Float32Array
    """Log-probs of all response tokens under θ0, ``[R]``; differs from the old ones only for replays, by option."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """What one step did."""

    step: Step
    sets: tuple[UpdateSet, ...]
    updates: tuple[UpdateOutcome, ...]
    logprob_gap: float
    """Largest log-prob difference between learner and generators at version k+1, nats."""
    early: int = 0
    """Updates begun before the last completion."""


def replays_at(config: Config, step: int) -> int:
    """M of a step."""
    return ReplaySchedule(config.replay.count, config.replay.schedule, steps=config.run.steps).at(step)


async def run_step(step: Step, prompts: Sequence[Prompt]) -> StepOutcome:
    """Train on one rollout of ``prompts`` under policy version k; leaves every generator at k + 1."""
    run, number, clock = step.run, step.number, step.clock
    streamed, count = run.config.update.stream != "off", len(prompts) // run.config.update.prompts
    sets: list[UpdateSet] = []
    outcomes: list[UpdateOutcome] = []
    written: list[float] = []
    """Seconds of generation when each update began."""
    with clock.phase("step"), run.progress.phase("update", count, "updates") as advance:

        async def update() -> None:
            ready, keep = sets[len(outcomes)], streamed and count > 1
            written.append(clock.seconds.get("generate", 0.0))
            with clock.phase("update"):
                outcomes.append(await step.trainers.learner.update(ready.batch, rollout=number, keep=keep))
            advance()

        async with aclosing(scored_sets(step, prompts)) as as_scored:
            async for ready in as_scored:
                sets.append(ready)
                if streamed:
                    await update()
        while len(outcomes) < len(sets):
            await update()
        with clock.phase("publish"):
            gap = await step.trainers.weights.publish(number + 1)
    early = sum(seconds < clock.seconds.get("generate", 0.0) for seconds in written)
    return StepOutcome(step, tuple(sets), tuple(outcomes), gap, early)


async def scored_sets(step: Step, prompts: Sequence[Prompt]) -> AsyncGenerator[UpdateSet, None]:
    """The update sets in their order, each scored at θ0 as soon as its groups are there.

    With ``update.stream`` each comes as soon as it and all before it are scored, otherwise all come at the end.
    """
    streamed = step.run.config.update.stream != "off"
    scoring: dict[int, asyncio.Task[UpdateSet]] = {}
    handed_out = 0
    try:
        async with aclosing(update_groups(step, prompts)) as complete:
            async for index, groups in complete:
                for failed in (task for task in scoring.values() if task.done()):
                    failed.result()  # a learner lost while others are still generating ends the step now
                scoring[index] = asyncio.create_task(scored(step, groups))
                while streamed and handed_out in scoring:
                    with step.clock.phase("score"):
                        ready = await scoring[handed_out]
                    handed_out += 1
                    yield ready
        for index in range(handed_out, len(scoring)):
            with step.clock.phase("score"):
                ready = await scoring[index]
            yield ready
    finally:
        await ended(*scoring.values())


async def update_groups(step: Step, prompts: Sequence[Prompt]) -> AsyncGenerator[tuple[int, tuple[Group, ...]], None]:
    """(number, groups in prompt order) of each optimizer update as soon as its last group is complete.

    Whole sets of prompts in the order of the step, or, with ``update.stream = "completion"``, of the groups' completion.
    """
    size = step.run.config.update.prompts
    if step.run.config.rollout.dynamic_sampling:
        groups = await refilled(step, prompts)
        for start in range(0, len(groups), size):
            yield start // size, tuple(groups[start : start + size])
        return
    position = {prompt.id: index for index, prompt in enumerate(prompts)}
    waiting: dict[int, dict[int, Group]] = {}
    arrived = itertools.count() if step.run.config.update.stream == "completion" else None
    async with aclosing(mixed_groups(step, prompts)) as groups_as_verified:
        async for group in groups_as_verified:
            index = position[group.prompt.id]
            number = (index if arrived is None else next(arrived)) // size
            members = waiting.setdefault(number, {})
            members[index] = group
            if len(members) == size:
                yield number, tuple(members[key] for key in sorted(members))


async def scored(step: Step, groups: tuple[Group, ...]) -> UpdateSet:
    """Rewards, advantages over the mixed groups, and old log-probs at θ0."""
    run = step.run
    members = [member for group in groups for member in group.members]
    graded = rewards(members, shaping_of(run.config))
    numbers = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    trained = graded.trained
    if run.config.advantage.drop_constant:
        trained = trained & ~zero_variance(graded.scores, numbers)
    batch = sequence_batch(groups, advantages_of(run.config, graded.scores, numbers), trained=trained)
    # Streamed: earlier sets may have been updated on by now.
    rollout = None if run.config.update.stream == "off" else step.number
    current = await step.trainers.learner.score(batch, rollout=rollout)
    mode = run.config.replay.old_logprobs
    old = old_logprobs(mode, batch, members, current, tokenizer_digest=run.tokenizer_digest)
    return UpdateSet(groups, graded, replace(batch, old_logprobs=old), current)


def shaping_of(config: Config) -> Shaping:
    """The reward rule of a config."""
    reward = config.reward
    return Shaping(
        rewards=status_rewards(correct=reward.correct, wrong=reward.otherwise),
        max_length=config.rollout.max_tokens,
        buffer=reward.overlong_buffer,
        factor=reward.overlong_factor,
        mask_truncated=reward.mask_truncated,
    )


def advantages_of(config: Config, scores: Float64Array, groups: Int64Array) -> Float64Array:
    """Advantages ``[S]`` by the configured estimator."""
    rule = config.advantage
    if rule.estimator == "leave-one-out":
        return leave_one_out_advantages(scores, groups)
    return group_advantages(scores, groups, ddof=rule.ddof, eps=rule.eps, scale=rule.scale)
