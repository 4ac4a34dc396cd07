"""Replays in place of fresh responses (``replay.group = "replace"``): drawn first, so that G − m responses are generated."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.core.types import Group, Prompt
from rlep.driver.context import Step
from rlep.driver.replays import draw_replays
from rlep.driver.rollout import training_requests
from rlep.driver.step import mix_group, rollout


async def replace_groups(step: Step, prompts: Sequence[Prompt]) -> list[Group]:
    """Return each prompt's group of G: m replays, and the first G − m of the fresh responses it would have without them."""
    with step.clock.phase("replay"):
        replays = await draw_replays(step, prompts)
    missing = {prompt.id: step.run.config.rollout.fresh - len(replays.get(prompt.id, ())) for prompt in prompts}
    requests = training_requests(step.run.config, step.number, prompts)
    fresh = await rollout(step, prompts, [each for each in requests if each.sample < missing[each.prompt_id]])
    return [mix_group(step, prompt, fresh[prompt.id], replays.get(prompt.id, ())) for prompt in prompts]
