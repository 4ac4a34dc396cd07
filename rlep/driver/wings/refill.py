"""Dynamic sampling (DAPO): groups whose verdicts are all equal are dropped and other prompts sampled, within a bound."""

from __future__ import annotations

from collections.abc import Sequence

from rlep.algorithms.dynamic_sampling import Refill, RefillReport, keep_group
from rlep.core.types import Group, Prompt
from rlep.driver.context import Step
from rlep.driver.step import GroupsOf


def refill(groups_of: GroupsOf) -> GroupsOf:
    """Take P groups with differing verdicts, or as many whole updates of them as the bound allows (none, at worst)."""

    async def until_filled(step: Step, prompts: Sequence[Prompt]) -> list[Group]:
        config = step.run.config
        plan = Refill(len(prompts), config.rollout.refill_limit, config.update.prompts)
        k = config.advantage.k if config.advantage.estimator == "pass@k" else 1
        kept: list[Group] = []
        used: list[Prompt] = []
        batch = prompts
        while batch:
            used.extend(batch)
            groups = await groups_of(step, batch)
            step.refills += RefillReport.of(groups, k)
            for group in groups:
                (kept if keep_group(group, k) else step.unused).append(group)
            asked = plan.ask(step.refills)
            batch = step.more(step.refills.rounds, asked, used) if asked else ()
        if step.refills.kept < plan.target:
            step.run.progress.note(f"step {step.number}: {plan.describe(step.refills)}")
        usable = plan.usable(step.refills)
        step.unused += kept[usable:]
        return kept[:usable]

    return until_filled
