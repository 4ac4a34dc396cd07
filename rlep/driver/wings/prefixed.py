"""Groups that go on from a stored success (``replay.group = "prefix"``): its first tokens are given as the end of the prompt.

So the rest of the step sees a longer prompt and G fresh responses to it: generators, verifiers, advantages and the loss need
no mask, and nothing of a prefix is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlep.algorithms.mixing import check_replays
from rlep.core.errors import MixingError
from rlep.core.types import Group, Prompt, Trajectory
from rlep.driver.context import Step
from rlep.driver.evaluate import Decode
from rlep.driver.replays import draw_replays
from rlep.driver.rollout import training_requests
from rlep.driver.step import GroupsOf, mix_group, rollout


def prefixed_groups(decode: Decode) -> GroupsOf:
    """Give each drawn replay's first tokens to all responses of its group; a prefix of 0 tokens gives nothing."""

    async def groups_of(step: Step, prompts: Sequence[Prompt]) -> list[Group]:
        with step.clock.phase("replay"):
            drawn = await draw_replays(step, prompts)
        begun = [_begin(step, prompt, drawn.get(prompt.id, ()), decode) for prompt in prompts]
        fresh = await rollout(step, begun, training_requests(step.run.config, step.number, begun))
        return [mix_group(step, prompt, fresh[prompt.id], ()) for prompt in begun]

    return groups_of


def _begin(step: Step, prompt: Prompt, drawn: Sequence[Trajectory], decode: Decode) -> Prompt:
    """Return ``prompt`` with the beginning of a drawn response at its end. Raises ``MixingError`` as ``mix`` does."""
    config = step.run.config
    check_replays(
        prompt.id,
        drawn,
        tokenizer_digest=step.run.tokenizer_digest,
        vocabulary=step.run.vocabulary,
        max_tokens=config.rollout.max_tokens,
        template_digest="" if config.replay.other_template == "render" else step.run.template_digest,
        environment_digest=step.run.environment_digest,
    )
    for stored in drawn:
        if stored.sampled is not None:
            raise MixingError(
                f"prompt {prompt.id}: replay {stored.content_id} is an episode of several turns: no response can go on from its "
                'beginning without its environment; choose another replay.group than "prefix"'
            )
        if given := step.trainers.method.given(step.number, stored):
            step.begun.append(stored)
            prefix = stored.tokens[:given]
            tokens = np.concatenate([prompt.tokens, prefix])
            return replace(prompt, tokens=tokens, opening=prompt.opening + decode(prefix), given=given)
    return prompt
