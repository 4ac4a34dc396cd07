"""Which wings of the driver a config asks for; ``RunActors.ports`` adds time-sharing where devices are shared."""

from __future__ import annotations

from functools import partial

from rlep.config.schema import Config
from rlep.data.prompts import PromptOrder, PromptSet
from rlep.driver.context import Run
from rlep.driver.live_replay import LiveReplay
from rlep.driver.ports import Experience, LivePool, ReplaySource, Rollouts
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import GroupsOf, mixed_groups, run_step
from rlep.driver.train import TrainStep, rlep_step
from rlep.driver.wings.bucket import with_bucket_questions
from rlep.driver.wings.prefetch import PrefetchedRollouts
from rlep.driver.wings.refill import refilled
from rlep.driver.wings.replacing import replaced_groups
from rlep.driver.wings.rollout_files import RolloutFiles
from rlep.driver.wings.streamed import streamed_step


def experience(config: Config, live: LivePool | None, offline: ReplaySource | None) -> Experience | None:
    """What the run replays from while it fills it, where ``replay.source`` asks for it."""
    return None if live is None else LiveReplay(config, live, config.run.directory, offline)


def train_step(
    config: Config, train: PromptSet, live: Experience | None = None, files: RolloutFiles | None = None
) -> TrainStep:
    """The step of phases 1 and 2: plain, streamed (``update.stream``), or with refills (``rollout.dynamic_sampling``).

    On prompts of ``train``, which ``replay.questions = "bucket"`` may choose. What it did is written to ``files``.
    """
    groups_of: GroupsOf = replaced_groups if config.replay.group == "replace" else mixed_groups
    if config.rollout.dynamic_sampling:
        groups_of = refilled(groups_of)
    make = streamed_step if config.update.stream else partial(run_step, groups_of=groups_of)
    step = partial(rlep_step, make=files.kept(make) if files else make)
    return with_bucket_questions(step, live, train.prompts) if live and config.replay.questions == "bucket" else step


def rollouts(run: Run, train: PromptSet) -> Rollouts:
    """On-policy rollouts, or with ``rollout.max_staleness`` prefetched ones of the steps over ``train``."""
    config, plain = run.config, OnPolicyRollouts(run)
    if not config.rollout.max_staleness:
        return plain
    order = PromptOrder(len(train), config.rollout.prompts, config.run.seed)
    return PrefetchedRollouts(
        plain,
        lambda step: [train.prompts[index] for index in order.step(step)],
        limit=config.rollout.max_staleness,
        steps=config.run.steps,
    )
