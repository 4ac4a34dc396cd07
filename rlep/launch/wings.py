"""Wings of the driver that a config asks for; ``RunActors.ports`` adds time-sharing where devices are shared."""

from __future__ import annotations

from functools import partial

from rlep.check.inputs import Inputs
from rlep.config.schema import Config
from rlep.data.prompts import PromptSet, order_of
from rlep.driver.context import Run
from rlep.driver.ports import Environments, Generators, Rollouts
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import GroupsOf, mix_groups, run_step
from rlep.driver.train import MakeStep
from rlep.driver.wings.episodes import EpisodeGenerators
from rlep.driver.wings.prefetch import PrefetchedRollouts
from rlep.driver.wings.refill import refill
from rlep.driver.wings.replacing import replace_groups
from rlep.driver.wings.streamed import stream_step
from rlep.metrics.catalogue import MetricValue


def choose_step(config: Config) -> MakeStep:
    """Return the step of phases 1 and 2: plain, streamed (``update.stream``), or with refills (``rollout.dynamic_sampling``)."""
    if config.update.stream:
        return stream_step
    groups_of: GroupsOf = replace_groups if config.replay.group == "replace" else mix_groups
    return partial(run_step, groups_of=refill(groups_of) if config.rollout.dynamic_sampling else groups_of)


def episodes(config: Config, inputs: Inputs, generators: Generators, environments: Environments | None) -> Generators:
    """Return generators that play each response as an episode of a prompt of ``inputs``; these where there is no environment."""
    if environments is None or inputs.dialogue is None:
        return generators
    asked = (*(inputs.train.prompts if inputs.train is not None else ()), *inputs.held_out)
    prompts = {prompt.id: prompt for prompt in reversed(asked)}
    return EpisodeGenerators(generators, environments, inputs.dialogue, prompts=prompts, turns=config.environment.turns)


def rollouts(run: Run, train: PromptSet) -> Rollouts:
    """Return on-policy rollouts, or with ``rollout.max_staleness`` prefetched ones of the steps over ``train``."""
    config, plain = run.config, OnPolicyRollouts(run)
    if not config.rollout.max_staleness:
        return plain
    order = order_of(config, train.report)
    return PrefetchedRollouts(plain, config, lambda step: [train.prompts[index] for index in order.step(step)])


def episode_metrics(generators: Generators) -> dict[str, MetricValue]:
    """Return what generators have to tell of the episodes of a step; nothing where they play none."""
    return generators.metrics() if isinstance(generators, EpisodeGenerators) else {}
