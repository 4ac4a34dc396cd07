"""Replay method and wings that a config asks for; ``RunActors.ports`` adds time-sharing where devices are shared."""

from __future__ import annotations

from functools import partial

from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.data.prompts import PromptOrder, PromptSet
from rlep.driver.context import Run
from rlep.driver.ports import Rollouts
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import GroupsOf, mixed_groups, run_step
from rlep.driver.train import MakeStep
from rlep.driver.wings.prefetch import PrefetchedRollouts
from rlep.driver.wings.refill import refilled
from rlep.driver.wings.replacing import replaced_groups
from rlep.driver.wings.streamed import streamed_step
from rlep.methods.replay_method import ReplayMethod, load_method


def choose_step(config: Config) -> MakeStep:
    """Return the step of phases 1 and 2: plain, streamed (``update.stream``), or with refills (``rollout.dynamic_sampling``)."""
    if config.update.stream:
        return streamed_step
    groups_of: GroupsOf = replaced_groups if config.replay.group == "replace" else mixed_groups
    return partial(run_step, groups_of=refilled(groups_of) if config.rollout.dynamic_sampling else groups_of)


def choose_method(config: Config) -> ReplayMethod:
    """Return the replay method of a run. Raises ``ConfigError`` where ``replay.method`` names none."""
    kind, name = load_method(config.replay.method), f'replay.method = "{config.replay.method}"'
    if config.rollout.max_staleness and kind.questions is not ReplayMethod.questions:
        raise ConfigError(f"{name} with rollout.max_staleness: later steps' prompts are not known yet")
    if config.replay.group == "replace" and kind.accepts is not ReplayMethod.accepts:
        raise ConfigError(
            f'{name} with replay.group = "replace": who gets replays would be known only after all G responses are generated'
        )
    return kind(seed=config.run.seed, fresh=config.rollout.fresh, options=config.replay.options)


def rollouts(run: Run, train: PromptSet) -> Rollouts:
    """Return on-policy rollouts, or with ``rollout.max_staleness`` prefetched ones of the steps over ``train``."""
    config, plain = run.config, OnPolicyRollouts(run)
    if not config.rollout.max_staleness:
        return plain
    order = PromptOrder(len(train), config.rollout.prompts, config.run.seed)
    return PrefetchedRollouts(plain, config, lambda step: [train.prompts[index] for index in order.step(step)])
