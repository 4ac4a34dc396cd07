"""The loss's options and normalisers, without torch: what a driver may know of the objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from rlep.core.errors import ConfigError
from rlep.core.types import BoolArray, Float64Array, Int64Array, SequenceBatch

Aggregation = Literal["token-mean", "prompt-token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"]
Level = Literal["token", "sequence"]
Surrogate = Literal["ppo", "cispo"]
KlEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Every choice in the loss; the defaults are RLEP's (arXiv 2507.07451, eq. 4, and the authors' scripts)."""

    clip_low: float = 0.2
    """The ratio is clipped below at 1 − clip_low."""
    clip_high: float = 0.28
    """The ratio is clipped above at 1 + clip_high (clip-higher, DAPO, arXiv 2503.14476)."""
    dual_clip: float | None = 10.0
    """Where A < 0 the loss of a token is at most −A · dual_clip (arXiv 1912.09729); None is eq. 4 literally."""
    log_ratio_clamp: float = 20.0
    """The log-ratio is clamped to ± this before exp; no gradient flows beyond it."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number; see ``sequence_weights``."""
    fixed_length: int | None = None
    """The constant that ``fixed-length`` divides by (Dr.GRPO: the generation budget in tokens); None elsewhere."""
    level: Level = "token"
    """``token``: a ratio per token. ``sequence``: GSPO's length-normalised ratio (arXiv 2507.18071)."""
    surrogate: Surrogate = "ppo"
    """``ppo``: clipped surrogate. ``cispo``: clipped, detached ratio times log-prob (arXiv 2506.13585)."""
    tis_cap: float | None = None
    """Cap of truncated importance sampling between sampler and learner, on fresh tokens; None is off."""
    kl_coef: float = 0.0
    """Weight of the KL to a reference policy; 0 is off."""
    kl_estimator: KlEstimator = "k3"
    """Which estimator of the KL enters the loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 is off."""
    high_entropy_fraction: float = 1.0
    """Share of tokens, highest entropy first, whose policy term is trained (arXiv 2506.01939); 1 is all."""
    replay_weight: float = 1.0
    """λ: factor of the policy term of replayed tokens."""
    replay_shaping: float = 0.0
    """γ: the policy term of replayed tokens is −A · f(ρ), f(x) = x / (x + γ), unclipped (arXiv 2504.14945); 0 is off."""
    replay_is_cap: float | None = None
    """C: the policy term of replayed tokens is multiplied by min(π0 / μ, C), detached, μ their sampler's; None is off."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("aggregation", Aggregation),
            ("level", Level),
            ("surrogate", Surrogate),
            ("kl_estimator", KlEstimator),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(get_args(kind))}")
        _require(0 <= self.clip_low <= 1, "clip_low", self.clip_low, "must lie in 0 … 1")
        _require(_positive(self.clip_high, zero=True), "clip_high", self.clip_high, "must not be negative")
        _require(
            self.dual_clip is None or (math.isfinite(self.dual_clip) and self.dual_clip > 1),
            "dual_clip",
            self.dual_clip,
            "must be above 1, or None for off",
        )
        _require(0 < self.log_ratio_clamp <= 80, "log_ratio_clamp", self.log_ratio_clamp, "must lie in (0, 80]")
        _require(self.tis_cap is None or _positive(self.tis_cap), "tis_cap", self.tis_cap, "must be above 0, or None")
        _require(_positive(self.kl_coef, zero=True), "kl_coef", self.kl_coef, "must not be negative")
        _require(_positive(self.entropy_coef, zero=True), "entropy_coef", self.entropy_coef, "must not be negative")
        fraction = self.high_entropy_fraction
        _require(0 < fraction <= 1, "high_entropy_fraction", fraction, "must lie in (0, 1]")
        weight, gamma, cap = self.replay_weight, self.replay_shaping, self.replay_is_cap
        _require(_positive(weight, zero=True), "replay_weight", weight, "must not be negative")
        _require(_positive(gamma, zero=True), "replay_shaping", gamma, "must not be negative")
        _require(cap is None or _positive(cap), "replay_is_cap", cap, "must be above 0, or None")
        self._check_combinations()

    def _check_combinations(self) -> None:
        fixed = self.aggregation == "fixed-length"
        if fixed and (self.fixed_length is None or self.fixed_length < 1):
            raise ConfigError(f"fixed_length = {self.fixed_length}: fixed-length needs the generation budget in tokens")
        if not fixed and self.fixed_length is not None:
            raise ConfigError(f"fixed_length = {self.fixed_length} has no effect with aggregation {self.aggregation!r}")
        if self.surrogate == "cispo" and self.dual_clip is not None:
            raise ConfigError(
                f"dual_clip = {self.dual_clip}: cispo bounds the ratio itself;"
                ' set dual_clip to None (loss.dual_clip = "none" in a config)'
            )
        if self.surrogate == "cispo" and self.level == "sequence":
            raise ConfigError("level = 'sequence': cispo is defined per token; use level 'token' or surrogate 'ppo'")
        if self.replay_shaping and (self.level, self.surrogate) != ("token", "ppo"):
            raise ConfigError(
                f"replay_shaping = {self.replay_shaping} shapes a token's own ratio: it needs level 'token' and surrogate 'ppo'"
            )
        if self.replay_shaping and self.replay_is_cap is not None:
            raise ConfigError(
                f"replay_shaping = {self.replay_shaping} and replay_is_cap = {self.replay_is_cap} both correct for the sampler: "
                "set one of them"
            )


def normalizers(batch: SequenceBatch, options: LossOptions) -> Float64Array:
    """The weight of each sequence's tokens ``[S]``, such that the update's loss is Σ over tokens of weight · p.

    Computed once from the whole update, it makes every packing and sharding exact: parts only add sums.
    Sequences that are not trained weigh 0. All weights are 0 where nothing is trained.
    """
    return sequence_weights(np.where(batch.trained, batch.response_lengths, 0), batch.groups, options)


def regulariser_normalizers(batch: SequenceBatch, options: LossOptions) -> Float64Array:
    """The same ``[S]`` for the KL and entropy terms: their mean is over ``batch.regularised``, where that is given."""
    kept = batch.trained if batch.regularised is None else batch.regularised
    return sequence_weights(np.where(kept, batch.response_lengths, 0), batch.groups, options)


def sequence_weights(
    token_counts: ArrayLike, groups: ArrayLike | None, options: LossOptions, *, token_count: int | None = None
) -> Float64Array:
    """Weights ``[S]`` from the number of unmasked tokens of each sequence ``[S]`` and its group ``[S]``.

    =====================  ===============================================================================
    token-mean             1 / N, N tokens in the update (``token_count`` where the call sees only a part)
    prompt-token-mean      1 / (P · N_q), eq. 4 read literally: the mean over prompts of their token means
    seq-mean-token-mean    1 / (S · T_i) (GRPO)
    seq-mean-token-sum     1 / S
    fixed-length           1 / (S · fixed_length) (Dr.GRPO, arXiv 2503.20783)
    =====================  ===============================================================================

    S and P count only sequences and prompts with at least one unmasked token.
    """
    counts = np.asarray(token_counts, dtype=np.float64)
    if groups is not None and np.shape(groups) != counts.shape:
        raise ValueError(f"groups of shape {np.shape(groups)} for {counts.shape[0]} sequences: must be [S]")
    filled = counts > 0
    total = counts.sum() if token_count is None else float(token_count)
    _check_token_count(counts, options, token_count)
    if total == 0 or not filled.any():
        return np.zeros_like(counts)
    if options.aggregation == "token-mean":
        divisors = np.full_like(counts, total)
    elif options.aggregation == "prompt-token-mean":
        divisors = _prompt_divisors(counts, groups)
    else:
        per_sequence = {"seq-mean-token-mean": counts, "seq-mean-token-sum": 1.0, "fixed-length": options.fixed_length}
        divisors = filled.sum() * np.broadcast_to(
            np.asarray(per_sequence[options.aggregation], dtype=np.float64), counts.shape
        )
    return np.divide(1.0, divisors, out=np.zeros_like(counts), where=filled)


def high_entropy_mask(entropies: ArrayLike, mask: ArrayLike, fraction: float) -> BoolArray:
    """The top ``fraction`` of an update's unmasked tokens by entropy ``[R]`` ("80/20", arXiv 2506.01939).

    Ties at the threshold are all kept. Call it on the whole update, so that packing does not move the threshold.
    """
    values, unmasked = np.asarray(entropies, dtype=np.float64), np.asarray(mask, dtype=np.bool_)
    if values.shape != unmasked.shape:
        raise ValueError(f"entropies of shape {values.shape} and mask of shape {unmasked.shape}: must be equal")
    _require(0 < fraction <= 1, "fraction", fraction, "must lie in (0, 1]")
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


def _check_token_count(counts: Float64Array, options: LossOptions, token_count: int | None) -> None:
    if token_count is None:
        return
    if not math.isfinite(token_count):
        raise ValueError(f"token_count = {token_count}: must be a finite number of tokens")
    if token_count < counts.sum():
        raise ValueError(f"token_count = {token_count}: this call alone has {int(counts.sum())} unmasked tokens")
    if options.aggregation != "token-mean" and token_count != counts.sum():
        raise ValueError(
            f"token_count = {token_count} cannot normalise a part of {int(counts.sum())} tokens under"
            f" {options.aggregation!r}; compute normalizers() over the whole update"
        )


def _positive(value: float, *, zero: bool = False) -> bool:
    return math.isfinite(value) and (value >= 0 if zero else value > 0)


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{name} = {value}: {rule}")
