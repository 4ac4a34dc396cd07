"""Supervised fine-tuning on the pool: the same prompts, draws, learner and evaluations as phase 2, without rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.algorithms.packing import answer_batch
from rlep.core.types import Prompt
from rlep.driver.context import Step
from rlep.driver.ledger import compute_of
from rlep.driver.replays import drawn_replays
from rlep.driver.step_metrics import update_metrics
from rlep.driver.train import Trained


async def sft_step(step: Step, prompts: Sequence[Prompt]) -> Trained:
    """Cross-entropy on up to M stored responses of each prompt, in the same mini-batches as phase 2."""
    clock, size = step.clock, step.run.config.update.prompts
    with clock.phase("step"):
        with clock.phase("replay"):
            drawn = await drawn_replays(step, prompts)
        outcomes, batches = [], []
        with clock.phase("update"), step.run.progress.phase("update", len(prompts) // size, "updates") as advance:
            for start in range(0, len(prompts), size):
                part = prompts[start : start + size]
                batch = answer_batch([(prompt, member) for prompt in part for member in drawn.get(prompt.id, ())])
                batches.append(batch)
                outcomes.append(await step.trainers.learner.update(batch, rollout=step.number, supervised=True))
                advance()
        with clock.phase("publish"):
            difference = await step.trainers.weights.publish(step.number + 1)
    replays = [member for prompt in prompts for member in drawn.get(prompt.id, ())]
    metrics = update_metrics(outcomes, supervised=True) | {f"time/{name}": s for name, s in clock.seconds.items()}
    metrics |= {
        "weights/version": step.number,
        "weights/logprob_difference": difference,
        "replay/trajectories": len(replays),
        "replay/tokens": sum(len(member.tokens) for member in replays),
    }
    compute = compute_of(step, batches, supervised=True)
    return Trained(tuple(outcomes), metrics, tuple(member.content_id for member in replays), compute)
