"""One training step of RLEP (arXiv 2507.07451, section 3.2), in the paper's order.

    prompts ─► generate G each ─► verify ─┐
       └─────► draw ≤ M replays ──────────┴► mix ─► advantages ─► score at θ_k ─► P/B updates ─► publish version k+1

The step returns only after every generator serves version k+1, so step k+1 samples from it and nothing else. What may
overlap more than this (prefetched rollouts, updates during the rollout) is in ``driver/wings``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rlep.algorithms.mixing import mix
from rlep.core.types import Group, Prompt, Request, SequenceBatch, Trajectory, UpdateOutcome
from rlep.driver.context import Step
from rlep.driver.mini_batch import mini_batches, with_old_logprobs
from rlep.driver.replays import count_wanted, draw_replays, replay_rules
from rlep.driver.rollout import bars, training_requests
from rlep.driver.tasks import together
from rlep.driver.values import ScoredMiniBatch
from rlep.methods.replay_method import Visit

GroupsOf = Callable[[Step, Sequence[Prompt]], Awaitable[list[Group]]]
"""The mixed groups that a step trains on, from its prompts."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """A complete step."""

    step: Step
    mini_batches: tuple[ScoredMiniBatch, ...]
    updates: tuple[UpdateOutcome, ...]
    logprob_difference: float
    """Largest of the generators' mean log-prob differences to the learner at version k+1, nats."""
    supervised: bool = False
    """The updates minimised the cross-entropy of replays; there were no rollouts."""

    @property
    def batches(self) -> Sequence[SequenceBatch]:
        """The batch of each update."""
        return [ready.batch for ready in self.mini_batches]

    @property
    def replays(self) -> Sequence[Trajectory]:
        """The replays that it trained on."""
        return [member for ready in self.mini_batches for group in ready.groups for member in group.replays]


async def run_step(step: Step, prompts: Sequence[Prompt], groups_of: GroupsOf | None = None) -> StepOutcome:
    """Train on one rollout of ``prompts`` under policy version k; leaves every generator at k + 1."""
    run, k, clock = step.run, step.number, step.clock
    learner, weights = step.trainers.learner, step.trainers.weights
    with clock.phase("step"):
        groups = await (groups_of or mix_groups)(step, prompts)
        batches = mini_batches(run, groups)
        with clock.phase("score"):  # all at θ_k
            scored = [with_old_logprobs(run, ready, await learner.score(ready.batch)) for ready in batches]
        updates, passes = [], scored * run.config.update.epochs
        with clock.phase("update"), run.progress.phase("update", len(passes), "updates") as advance:
            for ready in passes:  # P/B optimizer steps, equation 4
                updates.append(await learner.update(ready.batch, rollout=k))
                advance(1)
        with clock.phase("publish"):
            difference = await weights.publish(k + 1)  # checked by log-probs
    return StepOutcome(step, tuple(scored), tuple(updates), difference)


async def mix_groups(step: Step, prompts: Sequence[Prompt]) -> list[Group]:
    """Return each prompt's mixed group; replays are drawn during the rollout, and the first error of either ends both."""
    async with together() as tasks:
        drawing = tasks.create_task(draw_replays(step, prompts))
        fresh = await rollout(step, prompts, training_requests(step.run.config, step.number, prompts))
        with step.clock.phase("replay"):
            replays = await drawing
    return [mix_group(step, prompt, fresh[prompt.id], replays.get(prompt.id, ())) for prompt in prompts]


async def rollout(step: Step, prompts: Sequence[Prompt], requests: Sequence[Request]) -> dict[str, list[Trajectory]]:
    """Prompt id → its verified responses to ``requests``, in sample order."""
    with bars(step.run.progress, len(requests)) as shown:
        async with aclosing(step.trainers.rollouts.of(step.number, prompts, requests, step.clock, shown)) as verified:
            return {prompt.id: members async for prompt, members in verified}


def mix_group(step: Step, prompt: Prompt, fresh: Sequence[Trajectory], replays: Sequence[Trajectory]) -> Group:
    """Return the group of one prompt; without replays where the method or ``replay.only_below`` does not accept them."""
    config = step.run.config
    replaced = len(replays) if config.replay.group == "replace" else 0
    correct, tokens = sum(member.correct for member in fresh), sum(len(member.tokens) for member in fresh)
    computed = tokens + len(fresh) * len(prompt.tokens)
    step.visits.append(Visit(prompt.id, computed, correct, len(fresh)))
    own = {member.content_id for member in fresh}
    # A live replay may be a copy of a fresh response; stored ones of other runs are kept whatever they are.
    copies = [member for member in replays if member.birth >= 0 and member.content_id in own]
    replays = [member for member in replays if member not in copies]
    bound = config.replay.only_below
    below = bound is None or correct / max(len(fresh), 1) < bound
    accepted = below and step.trainers.method.accepts(fresh)
    step.accepting += accepted and prompt.id in step.asked
    wanted = count_wanted(step) if accepted else 0
    return mix(
        prompt,
        fresh,
        replays if wanted else (),
        policy_version=step.number,
        fresh_count=config.rollout.fresh - replaced,
        max_replays=max(0, wanted - len(copies)),
        max_staleness=config.rollout.max_staleness,
        allow_failed_replays=config.replay.failed > 0,
        require_replays=config.replay.require,
        **replay_rules(step),
    )
