"""A step that updates during its rollout: a mini-batch is scored when its groups are verified, and updated on in order.

    generate   q0 q1 q2 q3 q4 q5 q6 q7
    learner         score 0, update 0, score 1, update 1, …          ─► publish version k+1

Mini-batches are those of ``run_step``, whatever completes first. Responses and old log-probs are θ_k's throughout, since
generators change weights only when the step publishes and the learner keeps θ_k. So the result is that of ``run_step``,
to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from rlep.core.types import Group, Prompt, UpdateOutcome
from rlep.driver.context import Step
from rlep.driver.mini_batch import mini_batch, with_old_logprobs
from rlep.driver.replays import draw_replays
from rlep.driver.rollout import bars, training_requests
from rlep.driver.step import StepOutcome, mix_group
from rlep.driver.tasks import together
from rlep.driver.values import ScoredMiniBatch


async def stream_step(step: Step, prompts: Sequence[Prompt]) -> StepOutcome:
    """Train on one rollout of ``prompts`` under policy version k; leaves every generator at k + 1.

    The learner must keep θ_k beside the weights it updates (``Config.keeps_start_weights``).
    """
    run, k, clock = step.run, step.number, step.clock
    learner, weights, size = step.trainers.learner, step.trainers.weights, run.config.update.prompts
    position = {prompt.id: index for index, prompt in enumerate(prompts)}
    groups: dict[str, Group] = {}
    scored: dict[int, ScoredMiniBatch] = {}
    updates: list[UpdateOutcome] = []
    requests = training_requests(run.config, k, prompts)
    with (
        clock.phase("step"),
        bars(run.progress, len(requests)) as shown,
        run.progress.phase("update", run.config.updates_per_step, "updates") as advance,
    ):
        async with (
            together() as tasks,
            aclosing(step.trainers.rollouts.of(k, prompts, requests, clock, shown)) as verified,
        ):
            drawing = tasks.create_task(draw_replays(step, prompts))
            async for prompt, fresh in verified:
                with clock.phase("replay"):
                    replays = await drawing
                groups[prompt.id] = mix_group(step, prompt, fresh, replays.get(prompt.id, ()))
                number = position[prompt.id] // size
                of_update = prompts[number * size : (number + 1) * size]
                part = [groups[member.id] for member in of_update if member.id in groups]
                if len(part) < size:
                    continue
                ready = mini_batch(run, part)
                with clock.phase("score"):
                    scored[number] = with_old_logprobs(run, ready, await learner.score(ready.batch, rollout=k))
                while len(updates) in scored:
                    with clock.phase("update"):
                        updates.append(await learner.update(scored[len(updates)].batch, rollout=k))
                    advance(1)
        step.visits.sort(key=lambda visit: position[visit.prompt_id])
        ordered = [scored[number] for number in range(len(scored))]
        with clock.phase("update"):
            for ready in ordered * (run.config.update.epochs - 1):  # the first pass is over
                updates.append(await learner.update(ready.batch, rollout=k))
                advance(1)
        with clock.phase("publish"):
            difference = await weights.publish(k + 1)
    return StepOutcome(step, tuple(ordered), tuple(updates), difference)
