"""Mini-batches: whole mixed groups with rewards and advantages, ready for one optimizer update once they are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlep.algorithms.advantages import (
    group_advantages,
    leave_one_out_advantages,
    pass_at_k_advantages,
    whitened,
    zero_variance,
)
from rlep.algorithms.loss_values import Scoring, old_logprobs, stored_logprobs
from rlep.algorithms.packing import sequence_batch
from rlep.algorithms.shaping import Rewards, rewards
from rlep.config.schema import Config
from rlep.core.types import Float32Array, Float64Array, Group, Int64Array
from rlep.driver.context import Run
from rlep.driver.values import MiniBatch, ScoredMiniBatch


def mini_batch(run: Run, groups: Sequence[Group]) -> MiniBatch:
    """Compute rewards of every member, and advantages over each mixed group."""
    members = [member for group in groups for member in group.members]
    graded = rewards(members, run.config.reward, run.config.rollout.max_tokens)
    numbers = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    advantages = advantages_of(run.config, graded, numbers)
    trained, regularised, counted, rule = graded.trained, None, None, run.config.advantage
    if rule.drop_constant:
        trained = trained & ~zero_variance(advantages, numbers)
        if run.config.loss.kl_coef or run.config.loss.entropy_coef:  # which are not of the rewards
            regularised = graded.trained
        counted = graded.trained if rule.count_constant else None
    batch = sequence_batch(groups, advantages, trained=trained, regularised=regularised, counted=counted)
    return MiniBatch(tuple(groups), graded, batch)


def mini_batches(run: Run, groups: Sequence[Group]) -> list[MiniBatch]:
    """Cut the groups of a whole rollout into mini-batches; ``advantage.scale = "batch"`` is over all of them."""
    size = run.config.update.prompts
    ready = [mini_batch(run, groups[start : start + size]) for start in range(0, len(groups), size)]
    if run.config.advantage.scale != "batch" or not ready:
        return ready
    batches = [part.batch for part in ready]
    tokens = np.concatenate([np.where(batch.trained, batch.sampled_lengths, 0) for batch in batches])
    scaled = whitened(np.concatenate([batch.advantages for batch in batches]), tokens).astype(np.float32)
    parts = np.split(scaled, np.cumsum([len(batch) for batch in batches])[:-1])
    return [replace(part, batch=replace(part.batch, advantages=own)) for part, own in zip(ready, parts, strict=True)]


def with_old_logprobs(run: Run, ready: MiniBatch, current: Float32Array) -> ScoredMiniBatch:
    """Add old log-probs; ``current``: the learner's log-probs of ``ready.batch`` under θ_k, ``[R]``."""
    members, rule = [member for group in ready.groups for member in group.members], run.config.replay
    scoring = scoring_of(run.config, run.tokenizer_digest, run.template_digest)
    if rule.correction is not None:
        for group in ready.groups:
            for member in group.replays:
                stored_logprobs(member, scoring)  # says why they may not be compared with θ_k's
    old = old_logprobs(rule.old_logprobs, ready.batch, members, current, scoring)
    return ScoredMiniBatch(ready.groups, ready.rewards, replace(ready.batch, old_logprobs=old), current)


def scoring_of(config: Config, tokenizer_digest: str, template_digest: str) -> Scoring:
    """Return how a run's learner scores, which stored log-probs are compared with."""
    return Scoring(tokenizer_digest, template_digest, config.loss_temperature)


def advantages_of(config: Config, graded: Rewards, groups: Int64Array) -> Float64Array:
    """Compute advantages ``[S]`` by the configured estimator, before a whole rollout's scale."""
    rule, scores = config.advantage, graded.scores
    if rule.estimator == "pass@k":
        return pass_at_k_advantages(graded.accuracy, groups, k=rule.k, scale=rule.scale == "group")
    if rule.estimator == "batch":
        return scores
    if rule.estimator == "leave-one-out":
        return leave_one_out_advantages(scores, groups)
    return group_advantages(scores, groups, ddof=rule.ddof, eps=rule.eps, scale=rule.scale == "group")
