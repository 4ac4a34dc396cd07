"""Replays in place of fresh responses (``replay.group = "replace"``): drawn first, so that G − m responses are generated."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.core.types import Group, Prompt
from rlep.driver.context import Step
from rlep.driver.replays import drawn_replays
from rlep.driver.step import mixed, rollout


async def replaced_groups(step: Step, prompts: Sequence[Prompt]) -> list[Group]:
    """Each prompt's group of G: its m replays, and the first G − m of the fresh responses that it would have without them."""
    with step.clock.phase("replay"):
        replays = await drawn_replays(step, prompts)
    spared = {prompt_id: len(members) for prompt_id, members in replays.items() if members}
    fresh = await rollout(step, prompts, spared)
    return [mixed(step, prompt, fresh[prompt.id], replays.get(prompt.id, ()), spared) for prompt in prompts]
