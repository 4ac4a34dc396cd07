"""Values that enter the loss, and sums that come of it, without torch.

They are weights over a whole update, old log-probs of replays, and the metrics of each source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from rlep.config.replay import OldLogprobs
from rlep.config.training import LossConfig
from rlep.core.errors import MixingError
from rlep.core.types import BoolArray, Float32Array, Float64Array, Int64Array, Sampling, SequenceBatch, Trajectory

LOG_BOUND = 20.0
"""Log-ratios, and their sums over a sequence, are clamped to ± this, so that exp stays finite; no gradient flows beyond it."""


def normalizers(batch: SequenceBatch, loss: LossConfig, *, fixed_length: int = 0) -> Float64Array:
    """The weight of each sequence's tokens ``[S]``, such that the update's loss is Σ over tokens of weight · p.

    Computed once from the whole update, it makes every packing and sharding exact: parts only add sums.
    Sequences that are not trained weigh 0, whether the mean counts them or not. All weights are 0 where nothing is trained.
    ``fixed_length``: see ``sequence_weights``.
    """
    counted = batch.trained if batch.counted is None else batch.counted
    tokens = np.where(counted, batch.sampled_lengths, 0)
    return np.where(batch.trained, sequence_weights(tokens, batch.groups, loss, fixed_length=fixed_length), 0.0)


def regulariser_normalizers(batch: SequenceBatch, loss: LossConfig, *, fixed_length: int = 0) -> Float64Array:
    """The same ``[S]`` for the KL and entropy terms: their mean is over ``batch.regularised``, where that is given."""
    kept = batch.trained if batch.regularised is None else batch.regularised
    return sequence_weights(np.where(kept, batch.sampled_lengths, 0), batch.groups, loss, fixed_length=fixed_length)


def sequence_weights(
    token_counts: ArrayLike,
    groups: ArrayLike | None,
    loss: LossConfig,
    *,
    fixed_length: int = 0,
    token_count: int | None = None,
) -> Float64Array:
    """Weights ``[S]`` from the number of unmasked tokens of each sequence ``[S]`` and its group ``[S]``.

    =====================  ===============================================================================
    token-mean             1 / N, N tokens in the update (``token_count`` where the call sees only a part)
    prompt-token-mean      1 / (P · N_q), eq. 4 read literally: the mean over prompts of their token means
    seq-mean-token-mean    1 / (S · T_i) (GRPO)
    seq-mean-token-sum     1 / S
    fixed-length           1 / (S · fixed_length) (Dr.GRPO, arXiv 2503.20783)
    =====================  ===============================================================================

    ``fixed_length`` is the generation budget in tokens. S and P count only sequences and prompts with an unmasked token.
    """
    counts = np.asarray(token_counts, dtype=np.float64)
    if groups is not None and np.shape(groups) != counts.shape:
        raise ValueError(f"groups of shape {np.shape(groups)} for {counts.shape[0]} sequences: must be [S]")
    if loss.aggregation == "fixed-length" and fixed_length < 1:
        raise ValueError(f"fixed_length = {fixed_length}: fixed-length needs the generation budget in tokens")
    filled = counts > 0
    total = counts.sum() if token_count is None else float(token_count)
    _check_token_count(counts, loss, token_count)
    if total == 0 or not filled.any():
        return np.zeros_like(counts)
    if loss.aggregation == "token-mean":
        divisors = np.full_like(counts, total)
    elif loss.aggregation == "prompt-token-mean":
        divisors = _prompt_divisors(counts, groups)
    else:
        per_sequence = {"seq-mean-token-mean": counts, "seq-mean-token-sum": 1.0, "fixed-length": fixed_length}
        divisors = filled.sum() * np.broadcast_to(
            np.asarray(per_sequence[loss.aggregation], dtype=np.float64), counts.shape
        )
    return np.divide(1.0, divisors, out=np.zeros_like(counts), where=filled)


def high_entropy_mask(entropies: ArrayLike, mask: ArrayLike, fraction: float) -> BoolArray:
    """The top ``fraction`` of an update's unmasked tokens by entropy ``[R]`` ("80/20", arXiv 2506.01939).

    Ties at the threshold are all kept. Call it on the whole update, so that packing does not move the threshold.
    """
    values, unmasked = np.asarray(entropies, dtype=np.float64), np.asarray(mask, dtype=np.bool_)
    if values.shape != unmasked.shape:
        raise ValueError(f"entropies of shape {values.shape} and mask of shape {unmasked.shape}: must be equal")
    kept = math.ceil(fraction * unmasked.sum())
    if kept == 0:
        return np.zeros_like(unmasked)
    threshold = np.partition(values[unmasked], -kept)[-kept]
    return unmasked & (values >= threshold)


def _prompt_divisors(counts: Float64Array, groups: ArrayLike | None) -> Float64Array:
    if groups is None:
        raise ValueError("aggregation 'prompt-token-mean' needs the group of each sequence: pass groups [S]")
    index: Int64Array = np.unique(np.asarray(groups), return_inverse=True)[1]
    tokens = np.bincount(index, weights=counts)  # [P]
    return np.asarray((tokens > 0).sum() * tokens[index], dtype=np.float64)


def _check_token_count(counts: Float64Array, loss: LossConfig, token_count: int | None) -> None:
    if token_count is None:
        return
    if not math.isfinite(token_count):
        raise ValueError(f"token_count = {token_count}: must be a finite number of tokens")
    if token_count < counts.sum():
        raise ValueError(f"token_count = {token_count}: this call alone has {int(counts.sum())} unmasked tokens")
    if loss.aggregation != "token-mean" and token_count != counts.sum():
        raise ValueError(
            f"token_count = {token_count} cannot normalise a part of {int(counts.sum())} tokens under"
            f" {loss.aggregation!r}; compute normalizers() over the whole update"
        )


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the learner's log-probs come about; stored ones are comparable where theirs came about likewise."""

    tokenizer_digest: str
    template_digest: str = ""
    """Of what made its prompts; empty: not known."""
    temperature: float = 1.0
    bfloat16: bool = False
    """Take log-probs computed in bfloat16 too: for a truncated weight, as trainers take those of their own sampler."""


def old_logprobs(
    mode: OldLogprobs,
    batch: SequenceBatch,
    members: Sequence[Trajectory],
    recomputed: Float32Array,
    scoring: Scoring,
) -> Float32Array:
    """Old log-probs of every token that the policy sampled ``[R]``; fresh tokens always keep the recomputed ones.

    Args:
        batch: S sequences.
        members: their trajectories ``[S]``.
        recomputed: log-probs under θ0 ``[R]``, from the learner's own forward pass.
        scoring: how those came about.

    Raises:
        MixingError: ``behaviour`` with a replay whose stored log-probs are not comparable; the message says why.
    """
    lengths = batch.sampled_lengths
    if len(members) != len(batch) or recomputed.shape != (int(lengths.sum()),):
        raise ValueError(
            f"{len(members)} members and {len(recomputed)} log-probs for a batch of {len(batch)} sequences"
            f" and {int(lengths.sum())} sampled tokens"
        )
    if mode == "recompute":
        return recomputed
    result = recomputed.astype(np.float32, copy=True)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for index in np.flatnonzero(batch.replayed):
        span = slice(int(starts[index]), int(starts[index + 1]))
        member = members[index]
        result[span] = 0.0 if mode == "unit" else member.at_sampled(stored_logprobs(member, scoring))
    return result


def stored_logprobs(trajectory: Trajectory, scoring: Scoring) -> Float32Array:
    """The behaviour log-probs of a pool record ``[T]``, refused where they may not be compared with the learner's."""
    reason = incomparable(trajectory, scoring)
    if reason or trajectory.logprobs is None:
        raise MixingError(
            f"prompt {trajectory.prompt_id}: the stored log-probs of replay {trajectory.content_id} are not comparable:"
            f" {reason}; use old log-probs 'recompute'"
        )
    return trajectory.logprobs


def incomparable(trajectory: Trajectory, scoring: Scoring) -> str:
    """Why a record's log-probs may not be compared with the learner's; empty where they may.

    bfloat16 log-probs are off by up to 13 % in the ratio; raw log-probs of a sampler at another temperature or with a
    cut distribution are not those of the policy that sampled.
    """
    provenance, sampling = trajectory.provenance, trajectory.provenance.sampling
    plain, temperature = Sampling(), scoring.temperature
    modes = ("raw", "processed") if temperature == 1 else ("processed",)
    checks = (
        (trajectory.logprobs is not None, "none were stored"),
        (provenance.tokenizer_digest == scoring.tokenizer_digest, f"tokenizer {provenance.tokenizer_digest!r}"),
        (
            not provenance.prompted_otherwise(scoring.template_digest),
            f"after a prompt by template {provenance.template_digest!r}",
        ),
        (provenance.logprobs_mode in modes, f"mode {provenance.logprobs_mode!r}, not {' or '.join(modes)}"),
        (scoring.bfloat16 or provenance.logprobs_dtype != "bfloat16", "computed in bfloat16"),
        (sampling.temperature == temperature, f"sampled at temperature {sampling.temperature:g}, not {temperature:g}"),
        (sampling.top_p == plain.top_p, f"sampled with top_p {sampling.top_p}, not 1"),
        (sampling.top_k == plain.top_k, f"sampled with top_k {sampling.top_k}, not off"),
        (sampling.min_p == plain.min_p, f"sampled with min_p {sampling.min_p}, not off"),
        (
            sampling.repetition_penalty == plain.repetition_penalty,
            f"sampled with repetition_penalty {sampling.repetition_penalty}, not 1",
        ),
    )
    return ", ".join(reason for comparable, reason in checks if not comparable)


SOURCES = ("fresh", "replay")

COLUMNS = (
    "trajectories",
    "tokens",
    "loss",
    "advantage",
    "advantage_mass",
    "ratio",
    "clip_low",
    "clip_high",
    "dual_clip",
    "logprob",
    "old_kl",
    "reference_tokens",
    "reference_kl",
    "entropy_tokens",
    "entropy",
)
"""Sums; ``reference_tokens`` and ``entropy_tokens`` count the tokens for which such a value was supplied."""

_MEANS = {
    "advantage_mean": ("advantage", "tokens"),
    "advantage_mass": ("advantage_mass", "tokens"),
    "ratio_mean": ("ratio", "tokens"),
    "clip_fraction_low": ("clip_low", "tokens"),
    "clip_fraction_high": ("clip_high", "tokens"),
    "dual_clip_fraction": ("dual_clip", "tokens"),
    "logprob_mean": ("logprob", "tokens"),
    "old_kl": ("old_kl", "tokens"),
    "reference_kl": ("reference_kl", "reference_tokens"),
    "entropy": ("entropy", "entropy_tokens"),
}


@dataclass(frozen=True)
class LossShares(Mapping[str, float]):
    """Shares of unmasked tokens, readable as attributes and as a mapping."""

    clip_fraction_low: float
    """A < 0 and ratio below 1 − clip_low."""
    clip_fraction_high: float
    """A > 0 and ratio above 1 + clip_high."""
    dual_clip_fraction: float
    """A < 0 and ratio above dual_clip."""

    def __getitem__(self, name: str) -> float:
        if name not in tuple(self):
            raise KeyError(name)
        return float(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


def shares(sums: Float64Array) -> LossShares:
    """Shares over both sources, from sums ``[2, columns]``."""
    totals = dict(zip(COLUMNS, (float(value) for value in sums.sum(axis=0)), strict=True))
    tokens = max(totals["tokens"], 1.0)
    return LossShares(totals["clip_low"] / tokens, totals["clip_high"] / tokens, totals["dual_clip"] / tokens)


def source_metrics(sums: Float64Array, ratio_max: Float64Array) -> dict[str, float]:
    """Named metrics of an update, such as ``fresh/ratio_mean`` or ``replay/clip_fraction_high``.

    ``<source>/trajectories``, ``<source>/tokens`` and ``<source>/loss`` (its share of the loss, a sum) are always there:
    they show whether replays reached the loss. Means are left out for a source without tokens, and where their input
    was not supplied; ``<source>/reference_tokens`` and ``<source>/entropy_tokens`` stand beside those that are over them.

    Args:
        sums: ``[2, columns]``, added over micro-batches and ranks.
        ratio_max: ``[2]``, the largest over micro-batches and ranks.
    """
    metrics: dict[str, float] = {}
    for source, row, largest in zip(SOURCES, sums, ratio_max, strict=True):
        values = dict(zip(COLUMNS, (float(value) for value in row), strict=True))
        metrics |= {f"{source}/{name}": values[name] for name in ("trajectories", "tokens", "loss")}
        for name, (total, count) in _MEANS.items():
            if values[count]:
                metrics |= {f"{source}/{name}": values[total] / values[count], f"{source}/{count}": values[count]}
        if values["tokens"]:
            metrics[f"{source}/ratio_max"] = float(largest)
    return metrics
