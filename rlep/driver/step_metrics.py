"""Numbers of a step, by the names of ``rlep.metrics.catalogue``: among them the proof that replays reached the loss."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rlep.algorithms.corrections import corrected, correction_metrics
from rlep.algorithms.loss_values import SOURCES
from rlep.algorithms.rollout_stats import RolloutStats, part_means, rollout_stats, token_staleness
from rlep.algorithms.shaping import rewards
from rlep.core.types import LATENCY_BOUNDS, STATUSES, Group, UpdateCost, UpdateOutcome, Verdict
from rlep.driver.replays import count_wanted
from rlep.driver.step import StepOutcome
from rlep.metrics.catalogue import MetricValue

_BY_TOKENS = {  # metric → keys of source_metrics: a mean, and the tokens of that source that it is over
    "update/clip_fraction_low": ("clip_fraction_low", "tokens"),
    "update/clip_fraction_high": ("clip_fraction_high", "tokens"),
    "update/clip_fraction_dual": ("dual_clip_fraction", "tokens"),
    "update/entropy": ("entropy", "entropy_tokens"),
    "update/approx_kl": ("old_kl", "tokens"),
    "update/reference_kl": ("reference_kl", "reference_tokens"),
    "ratio/mean": ("ratio_mean", "tokens"),
}


def step_metrics(outcome: StepOutcome) -> dict[str, MetricValue]:
    """Return everything ``metrics.jsonl`` records of a step, except evaluation and checkpoint times."""
    groups = [group for ready in outcome.mini_batches for group in ready.groups]
    values: dict[str, MetricValue] = {f"time/{name}": seconds for name, seconds in outcome.step.clock.seconds.items()}
    values["weights/version"] = outcome.step.number
    values["weights/logprob_difference"] = outcome.logprob_difference
    if outcome.supervised:
        values["replay/trajectories"] = len(outcome.replays)
        values["replay/tokens"] = sum(member.sampled_length for member in outcome.replays)
        return values | update_metrics(outcome.updates, supervised=True)
    values["selection/rounds"] = outcome.step.refills.rounds or 1
    values["selection/discarded"] = outcome.step.refills.sampled - outcome.step.refills.kept
    if groups:
        scores = np.concatenate([ready.rewards.scores for ready in outcome.mini_batches])
        stats = rollout_stats(groups, scores, max_replays=count_wanted(outcome.step))
        values |= _groups(outcome, stats, groups) | _replays(outcome, stats, groups) | _logprobs(outcome)
        values |= _staleness(outcome, groups) | _correction(outcome)
        if outcome.step.refills.rounds:
            values["selection/accuracy"] = stats.fresh.accuracy
    if sampled := [*groups, *outcome.step.unused]:
        values |= _rollout(outcome, sampled)
    return values | update_metrics(outcome.updates)


def _rollout(outcome: StepOutcome, sampled: Sequence[Group]) -> dict[str, MetricValue]:
    """The fresh rollouts of all groups, those that dynamic sampling dropped among them."""
    members = [member for group in sampled for member in group.members]
    config = outcome.step.run.config
    scores = rewards(members, config.reward, config.rollout.max_tokens).scores
    stats = rollout_stats(sampled, scores, max_replays=0).fresh
    fresh = [member for group in sampled for member in group.fresh]
    values: dict[str, MetricValue] = {
        "rollout/prompts": len(sampled),
        "rollout/samples": stats.sequences,
        "rollout/tokens": stats.tokens,
        "rollout/accuracy": stats.accuracy,
        "rollout/reward": stats.score,
        "rollout/length_mean": stats.length,
        "rollout/length_max": max(member.sampled_length for member in fresh),
        "rollout/truncated": stats.truncated,
    }
    # A prefetched rollout also waits behind earlier ones: its time does not measure its speed.
    if not config.rollout.max_staleness and (seconds := outcome.step.clock.seconds.get("generate")):
        values["rollout/tokens_per_second"] = stats.tokens / seconds
    return values | _verdicts([member.verdict for member in fresh])


def _verdicts(verdicts: Sequence[Verdict]) -> dict[str, MetricValue]:
    values = _scores(verdicts)
    statuses = Counter(verdict.status for verdict in verdicts)
    latencies = Counter(bisect_left(LATENCY_BOUNDS, verdict.seconds) for verdict in verdicts)
    return values | {
        "verifier/fast": sum(verdict.path == "fast" for verdict in verdicts) / len(verdicts),
        "verifier/seconds": sum(verdict.seconds for verdict in verdicts) / len(verdicts),
        "verifier/latency": [latencies[bucket] for bucket in range(len(LATENCY_BOUNDS) + 1)],
        **{f"verifier/status/{status}": statuses[status] for status in STATUSES},
    }


def _scores(verdicts: Sequence[Verdict]) -> dict[str, MetricValue]:
    """Partial credit and its parts, where a verifier gives them."""
    if all(verdict.score is None for verdict in verdicts):
        return {}
    parts = part_means([verdict.parts for verdict in verdicts])
    return {
        "rollout/score": float(np.mean([verdict.credit for verdict in verdicts])),
        **{f"rollout/part/{name}": mean for name, mean in parts.items()},
    }


def _groups(outcome: StepOutcome, stats: RolloutStats, groups: Sequence[Group]) -> dict[str, MetricValue]:
    replays = Counter(len(group.replays) for group in groups)
    rule = outcome.step.run.config.replay
    return {
        "group/fresh_successes": list(stats.fresh_successes),
        "group/replays": [replays[count] for count in range(rule.count + rule.failed + 1)],
        "group/informative": _informative(outcome) / stats.groups,
        "group/solved_by_replay": sum(group.rescued for group in groups) / stats.groups,
    }


def _informative(outcome: StepOutcome) -> int:
    """Number of groups with an advantage other than 0."""
    return sum(
        bool(own.any())
        for ready in outcome.mini_batches
        for own in np.split(ready.batch.advantages, np.cumsum([len(group.members) for group in ready.groups])[:-1])
    )


def _replays(outcome: StepOutcome, stats: RolloutStats, groups: Sequence[Group]) -> dict[str, MetricValue]:
    replays = [member for group in groups for member in group.replays]
    values: dict[str, MetricValue] = {"replay/trajectories": len(replays), "replay/tokens": stats.replay.tokens}
    if outcome.step.replays:
        values["pool/hit"] = 1 - stats.groups_without_replays / stats.groups
        values["pool/short"] = stats.groups_short
        values["replay/unfit"] = outcome.step.unfit
    if replays:
        values["replay/reward"] = stats.replay.score
        values["replay/failed"] = sum(not member.correct for member in replays)
        values["replay/distinct"] = len({member.content_id for member in replays})
        values["replay/length_mean"] = stats.replay.length
        ages = [outcome.step.number - member.birth for member in replays if member.birth >= 0]
        if ages:
            values["replay/live"] = len(ages)
            values["replay/age"] = float(np.mean(ages))
        known = [member.at_sampled(member.logprobs) for member in replays if member.logprobs is not None]
        if known:
            values["logprob/replay_behaviour"] = float(np.concatenate(known).mean(dtype=np.float64))
    return values


def _logprobs(outcome: StepOutcome) -> dict[str, MetricValue]:
    """Mean log-probs per token at θ0 and advantage means, by source."""
    values: dict[str, MetricValue] = {}
    for name, replayed in zip(SOURCES, (False, True), strict=True):
        tokens, advantages = [], []
        for ready in outcome.mini_batches:
            rows = ready.batch.replayed == replayed
            tokens.append(ready.current_logprobs[np.repeat(rows, ready.batch.sampled_lengths)])
            advantages.append(ready.batch.advantages[rows])
        if sum(map(len, tokens)):
            values[f"logprob/{name}"] = float(np.concatenate(tokens).mean(dtype=np.float64))
            values[f"advantage/mean/{name}"] = float(np.concatenate(advantages).mean(dtype=np.float64))
    return values


def _staleness(outcome: StepOutcome, groups: Sequence[Group]) -> dict[str, MetricValue]:
    """Measure the policy lag of the fresh tokens."""
    step = outcome.step
    if not step.run.config.rollout.max_staleness:
        return {}
    lags = token_staleness([member for group in groups for member in group.fresh], step.number)
    return {
        "staleness/mean": float(lags.mean()),
        "staleness/max": int(lags.max()),
        "staleness/stale": float((lags > 0).mean()),
    }


def _correction(outcome: StepOutcome) -> dict[str, MetricValue]:
    """The importance weights and masks that the loss puts on the tokens of each source."""
    config = outcome.step.run.config
    values: dict[str, MetricValue] = {}
    for source, rule, replayed in zip(
        SOURCES, (config.loss.correction, config.replay.correction), (False, True), strict=True
    ):
        batches = [batch for batch in outcome.batches if (batch.trained & (batch.replayed == replayed)).any()]
        if rule is not None and batches:
            parts = [corrected(batch, rule, replayed=replayed) for batch in batches]
            values |= correction_metrics(parts, source)
    return values


def update_metrics(updates: Sequence[UpdateOutcome], *, supervised: bool = False) -> dict[str, MetricValue]:
    """The numbers of a step's optimizer updates; ``supervised``: their loss is the cross-entropy."""
    applied = [update for update in updates if not update.skipped]
    values: dict[str, MetricValue] = {"update/count": len(applied), "update/skipped": len(updates) - len(applied)}
    if applied:
        values["loss/sft" if supervised else "loss/policy"] = float(np.mean([update.loss for update in applied]))
        values["update/grad_norm"] = float(np.mean([update.grad_norm for update in applied]))
        values["update/grad_norm_max"] = max(update.grad_norm for update in applied)
        values["update/learning_rate"] = applied[-1].learning_rate
        values |= _costs([update.cost for update in applied])
    for source in () if supervised else SOURCES:
        values |= _by_source([update.sources for update in updates], source)
        parts = [update.sources.get(f"{source}/loss", 0.0) for update in applied]
        if any(parts) or (parts and f"ratio/max/{source}" in values):
            values[f"loss/part/{source}"] = float(np.mean(parts))
    return values


def _costs(costs: Sequence[UpdateCost]) -> dict[str, MetricValue]:
    """Speed and memory, where the learner reports what its updates took."""
    seconds, flops = sum(cost.seconds for cost in costs), sum(cost.model_flops for cost in costs)
    if not seconds:
        return {}
    values: dict[str, MetricValue] = {
        "update/tokens_per_second": sum(cost.tokens for cost in costs) / seconds,
        "update/flops_per_second": flops / seconds,
        "update/peak_memory": max(cost.peak_memory_bytes for cost in costs),
    }
    if peak := costs[-1].peak_flops:
        values["update/flop_utilization"] = flops / seconds / peak
    return values


def _by_source(updates: Sequence[Mapping[str, float]], source: str) -> dict[str, MetricValue]:
    rows = [row for row in updates if row.get(f"{source}/tokens")]
    tokens = np.array([row[f"{source}/tokens"] for row in rows])
    values: dict[str, MetricValue] = {
        f"loss/tokens/{source}": int(tokens.sum()),
        f"loss/trajectories/{source}": round(sum(row[f"{source}/trajectories"] for row in rows)),
    }
    if rows:
        mass = np.array([row[f"{source}/advantage_mass"] for row in rows])
        values[f"advantage/mass/{source}"] = float((mass * tokens).sum())
        values[f"ratio/max/{source}"] = max(row[f"{source}/ratio_max"] for row in rows)
    for name, (key, weight) in _BY_TOKENS.items():
        # KL and entropy act on groups that are out of the policy's loss, too: an update may have tokens of theirs alone.
        rows = [row for row in updates if row.get(f"{source}/{weight}") and f"{source}/{key}" in row]
        if rows:
            means, weights = zip(*((row[f"{source}/{key}"], row[f"{source}/{weight}"]) for row in rows), strict=True)
            values[f"{name}/{source}"] = float(np.average(means, weights=weights))
    return values
