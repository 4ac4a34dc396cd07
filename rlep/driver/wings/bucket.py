"""Questions by how often they were solved (``replay.questions = "bucket"``): they take a share of the step's places."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.core.types import Prompt
from rlep.driver.context import Step
from rlep.driver.ports import Experience
from rlep.driver.train import Trained, TrainStep


def with_bucket_questions(train: TrainStep, live: Experience, prompts: Sequence[Prompt]) -> TrainStep:
    """``train`` on the first prompts of a step and on those that ``live`` draws, or on as many of its own as are missing."""
    by_id = {prompt.id: prompt for prompt in prompts}

    async def step_on_both(step: Step, own: Sequence[Prompt]) -> Trained:
        kept = len(own) - int(step.run.config.replay.ratio * len(own))
        drawn = live.questions(step.number, len(own) - kept, {prompt.id for prompt in own[:kept]})
        rest = [prompt for prompt in own[kept:] if prompt.id not in drawn]
        chosen = [by_id[prompt_id] for prompt_id in drawn]
        return await train(step, [*own[:kept], *chosen, *rest[: len(own) - kept - len(chosen)]])

    return step_on_both
