"""Supervised fine-tuning on the pool: the same prompts, draws, learner and evaluations as phase 2, without rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlep.algorithms.mixing import check_replays
from rlep.algorithms.packing import answer_batch
from rlep.core.types import Prompt, SequenceBatch, Trajectory
from rlep.driver.context import Step
from rlep.driver.replays import count_wanted, draw_replays, replay_rules
from rlep.driver.step import StepOutcome


@dataclass(frozen=True, slots=True, eq=False)
class SupervisedOutcome(StepOutcome):
    """A complete step of supervised fine-tuning."""

    trained: tuple[SequenceBatch, ...] = ()
    imitated: tuple[Trajectory, ...] = ()

    @property
    def batches(self) -> Sequence[SequenceBatch]:
        """The batch of each update."""
        return self.trained

    @property
    def replays(self) -> Sequence[Trajectory]:
        """The responses that it imitated."""
        return self.imitated


async def sft_step(step: Step, prompts: Sequence[Prompt]) -> SupervisedOutcome:
    """Minimise the cross-entropy of up to M stored responses of each prompt, in the same mini-batches as phase 2."""
    clock, size = step.clock, step.run.config.update.prompts
    with clock.phase("step"):
        with clock.phase("replay"):
            drawn = await draw_replays(step, prompts)
            for prompt in prompts:
                _check(step, prompt, drawn.get(prompt.id, ()))
        updates, batches = [], []
        with clock.phase("update"), step.run.progress.phase("update", len(prompts) // size, "updates") as advance:
            for start in range(0, len(prompts), size):
                part = prompts[start : start + size]
                batch = answer_batch([(prompt, member) for prompt in part for member in drawn.get(prompt.id, ())])
                batches.append(batch)
                updates.append(await step.trainers.learner.update(batch, rollout=step.number, supervised=True))
                advance(1)
        with clock.phase("publish"):
            difference = await step.trainers.weights.publish(step.number + 1)
    replays = tuple(member for prompt in prompts for member in drawn.get(prompt.id, ()))
    return SupervisedOutcome(step, (), tuple(updates), difference, True, tuple(batches), replays)


def _check(step: Step, prompt: Prompt, replays: Sequence[Trajectory]) -> None:
    """Refuse what a group of phase 2 refuses. Raises ``MixingError``."""
    rule = step.run.config.replay
    check_replays(
        prompt.id,
        replays,
        allow_failed=rule.failed > 0,
        required=count_wanted(step) if rule.require else 0,
        **replay_rules(step),
    )
