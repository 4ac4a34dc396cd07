"""The RLEP loss (arXiv 2507.07451, eq. 4), in torch, over packed response tokens.

Everything is a sum over tokens of ``weight of the sequence × term of the token``. The weights come from the whole
update (``normalizers``), so micro-batches and ranks only add up: ``packed_policy_loss`` never divides.
Terms are computed in float64, where |Δ log-prob| up to the clamp keeps its digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rlep.algorithms.loss_values import (
    COLUMNS,
    LOG_BOUND,
    SOURCES,
    LossShares,
    sequence_weights,
    shares,
    source_metrics,
)
from rlep.config.replay import ReplayConfig
from rlep.config.settings import section_of
from rlep.config.training import Aggregation, LossConfig
from rlep.core.errors import ConfigError
from rlep.core.types import Float64Array, SequenceBatch

NO_REPLAY = ReplayConfig()


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """R response tokens of S whole sequences, end to end; what stands at masked positions is never read."""

    logprobs: Tensor
    """``[R]`` under the policy in training; gradients flow through it."""
    old_logprobs: Tensor
    """``[R]`` under θ0."""
    advantages: Tensor
    """``[R]``"""
    mask: Tensor
    """``[R]`` bool: which tokens are in the policy's loss."""
    sequences: Tensor
    """``[R]`` int64: the sequence of each token, 0 … S − 1."""
    weights: Tensor
    """``[S]``: rows of ``normalizers`` over the whole update."""
    replayed: Tensor
    """``[S]`` bool: which sequences came from the pool."""
    reference_logprobs: Tensor | None = None
    """``[R]`` under the reference policy; needed by ``kl_coef``."""
    importance: Tensor | None = None
    """``[R]``: rows of ``corrections.importance`` over the whole update; needed by ``correction``."""
    entropy: Tensor | None = None
    """``[R]`` entropy of the policy in training; needed by ``entropy_coef``."""
    high_entropy: Tensor | None = None
    """``[R]`` bool, rows of ``high_entropy_mask`` over the whole update; needed by ``high_entropy_fraction``."""
    regularised: Tensor | None = None
    """``[R]`` bool: which tokens are in the KL and entropy terms; None: those in ``mask``."""
    regulariser_weights: Tensor | None = None
    """``[S]``: rows of ``regulariser_normalizers``; None: ``weights``."""

    @property
    def kept(self) -> Tensor:
        """``[R]`` bool: which tokens KL and entropy act on."""
        return self.mask if self.regularised is None else self.regularised


@dataclass(frozen=True, slots=True, eq=False)
class LossSums:
    """Sums over the unmasked tokens of a part of an update; ranks reduce ``sums`` by SUM and ``ratio_max`` by MAX."""

    sums: Tensor
    """``[2, columns]`` float64: fresh, replay; the columns are ``loss_values.COLUMNS``."""
    ratio_max: Tensor
    """``[2]`` float64; 0 for a source without tokens."""

    @classmethod
    def zeros(cls, device: torch.device) -> LossSums:
        """Of no tokens."""
        sums = torch.zeros(len(SOURCES), len(COLUMNS), dtype=torch.float64, device=device)
        return cls(sums, torch.zeros(len(SOURCES), dtype=torch.float64, device=device))

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(self.sums + other.sums, self.ratio_max.maximum(other.ratio_max))

    def metrics(self) -> dict[str, float]:
        """``source_metrics`` of these sums."""
        return source_metrics(self.sums.cpu().numpy(), self.ratio_max.cpu().numpy())


def packed_tokens(
    batch: SequenceBatch,
    logprobs: Tensor,
    weights: Float64Array,
    *,
    reference_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    high_entropy: Tensor | None = None,
    regulariser_weights: Float64Array | None = None,
    importance: Float64Array | None = None,
) -> PackedTokens:
    """A micro-batch as the loss reads it, on the device of ``logprobs`` ``[R]``.

    Args:
        batch: whole sequences with their old log-probs.
        weights: ``[S]``, the micro-batch's rows of ``normalizers`` over the whole update.
        regulariser_weights: ``[S]``, those of ``regulariser_normalizers``; needed where ``batch.regularised`` is given.
    """
    if batch.regularised is not None and regulariser_weights is None:
        raise ValueError("the batch has sequences for KL and entropy alone: give regulariser_weights")
    if batch.old_logprobs is None:
        raise ValueError("the batch has no old_logprobs: score it under θ0 before the first update")
    lengths, device = batch.sampled_lengths, logprobs.device
    sequences = np.repeat(np.arange(len(batch)), lengths)
    if logprobs.shape != sequences.shape or len(weights) != len(batch):
        raise ValueError(
            f"logprobs of shape {tuple(logprobs.shape)} and {len(weights)} weights for {len(batch)} sequences"
            f" of {len(sequences)} response tokens"
        )

    def put(array: ArrayLike) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array)).to(device)

    return PackedTokens(
        logprobs=logprobs,
        old_logprobs=put(batch.old_logprobs),
        advantages=put(batch.advantages[sequences]),
        mask=put(batch.trained[sequences]),
        sequences=put(sequences),
        weights=put(weights),
        replayed=put(batch.replayed),
        reference_logprobs=reference_logprobs,
        importance=None if importance is None else put(importance),
        entropy=entropy,
        high_entropy=high_entropy,
        regularised=None if batch.regularised is None else put(batch.regularised[sequences]),
        regulariser_weights=None if regulariser_weights is None else put(regulariser_weights),
    )


def packed_policy_loss(
    packed: PackedTokens, loss: LossConfig, replay: ReplayConfig = NO_REPLAY
) -> tuple[Tensor, LossSums]:
    """This part's share of the update's loss (a float64 scalar with a gradient) and the sums behind its metrics.

    Adding the losses, gradients and sums of all micro-batches of all ranks gives those of the update.
    """
    _check_supplied(packed, loss, replay)
    if loss.reward_coef != 1:
        packed = replace(packed, advantages=loss.reward_coef * packed.advantages)
    if loss.kl_coef and loss.kl_estimator == "k1":
        packed = replace(packed, advantages=_kl_in_reward(packed, loss.kl_coef))
    logprobs, old = _masked(packed.logprobs, packed.mask), _constant(packed.old_logprobs, packed.mask)
    advantages = _constant(packed.advantages, packed.mask)  # [R]
    log_ratio = logprobs - old
    if loss.level == "sequence":
        log_ratio = _sequence_mean(log_ratio, packed)
    ratio = torch.exp(log_ratio.clamp(-LOG_BOUND, LOG_BOUND))
    policy = ppo_terms(ratio, advantages, loss)
    if loss.surrogate == "cispo":
        policy = cispo_terms(ratio, logprobs, advantages, loss)
    if packed.importance is not None:
        policy = policy * packed.importance
    policy = _replay_terms(packed, replay, policy, ratio)
    if packed.high_entropy is not None:
        # After the terms and before the weights: tokens that are left out still count in the mean.
        policy = torch.where(packed.high_entropy, policy, 0.0)
    weighted = torch.where(packed.mask, packed.weights.double()[packed.sequences] * policy, 0.0)  # [R]
    if loss.kl_coef or loss.entropy_coef:
        weighted = weighted + _regularisers(packed, loss)
    with torch.no_grad():
        sums = _sums(packed, loss, replay, weighted, ratio)
    return weighted.sum(), sums


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 10.0,
    aggregation: Aggregation = "token-mean",
    token_count: int | None = None,
    groups: ArrayLike | Tensor | None = None,
    fixed_length: int | None = None,
) -> tuple[Tensor, LossShares]:
    """The loss of padded sequences, for callers that see a whole update (or, with ``token_count``, a part of one).

    Args:
        logprobs: ``[S, T]`` under the policy in training.
        old_logprobs: ``[S, T]`` under θ0.
        advantages: ``[S]`` or ``[S, T]``.
        mask: ``[S, T]`` of 0 and 1, holes allowed; masked positions may hold anything.
        token_count: unmasked tokens in the whole update, for ``token-mean``; by default those of ``mask``.
        groups: ``[S]`` integer prompt ids, for ``prompt-token-mean``.

    Returns:
        The scalar loss, float64 for float64 log-probs and float32 otherwise (0, with a gradient of 0, where nothing is
        unmasked), and the shares of clipped tokens among the unmasked ones.
    """
    if (aggregation == "fixed-length") != (fixed_length is not None):
        raise ConfigError(
            f"fixed_length = {fixed_length} with aggregation {aggregation!r}: fixed-length divides by it, and nothing else does"
        )
    values = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip, "aggregation": aggregation}
    config = section_of(LossConfig, "loss", values)
    # Padding may hold anything, also NaN: it is checked and cut off before a value is used.
    keep, spread = _checked_padded(logprobs, old_logprobs, advantages, mask)
    ids = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else groups
    weights = sequence_weights(
        keep.sum(dim=1).cpu().numpy(), ids, config, fixed_length=fixed_length or 0, token_count=token_count
    )
    count, length = logprobs.shape
    device = logprobs.device
    packed = PackedTokens(
        logprobs=logprobs.reshape(-1),
        old_logprobs=old_logprobs.reshape(-1),
        advantages=spread.reshape(-1),
        mask=keep.reshape(-1),
        sequences=torch.arange(count, device=device).repeat_interleave(length),
        weights=torch.as_tensor(weights, device=device),
        replayed=torch.zeros(count, dtype=torch.bool, device=device),
    )
    loss, sums = packed_policy_loss(packed, config)
    return loss.to(torch.promote_types(logprobs.dtype, torch.float32)), shares(sums.sums.cpu().numpy())


def _replay_terms(packed: PackedTokens, replay: ReplayConfig, policy: Tensor, ratio: Tensor) -> Tensor:
    """The policy terms ``[R]`` with those of replayed tokens shaped and weighed."""
    if not replay.shaping and replay.weight == 1:
        return policy
    replayed = packed.mask & packed.replayed[packed.sequences]
    if replay.shaping:
        advantages = _constant(packed.advantages, packed.mask)
        policy = torch.where(replayed, shaped_terms(ratio, advantages, replay.shaping), policy)
    return torch.where(replayed, replay.weight * policy, policy)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    # where, not a product: 0 · NaN is NaN, in the loss and in the gradient.
    return torch.where(mask, values.double(), 0.0)


def _constant(values: Tensor, mask: Tensor) -> Tensor:
    return _masked(values.detach(), mask)


def _sequence_mean(log_ratio: Tensor, packed: PackedTokens) -> Tensor:
    """GSPO's log-ratio: the mean over the unmasked tokens of a sequence, given to each of them ``[R]``."""
    zeros = torch.zeros(len(packed.weights), dtype=torch.float64, device=log_ratio.device)
    totals = zeros.index_add(0, packed.sequences, log_ratio)  # [S]
    return (totals / _token_counts(packed).clamp(min=1))[packed.sequences]


def _kl_in_reward(packed: PackedTokens, coefficient: float) -> Tensor:
    """Advantages ``[R]`` less coefficient × Σ of log π_θ0 − log π_ref over a fresh token and those after it in its sequence.

    Its expected gradient at θ0 is that of the KL of whole responses. A replay is no sample of the policy, and keeps its own.
    """
    if packed.reference_logprobs is None:
        raise ValueError("kl_coef needs reference_logprobs")
    fresh = packed.mask & ~packed.replayed[packed.sequences]
    old, reference = _constant(packed.old_logprobs, fresh), _constant(packed.reference_logprobs, fresh)
    kl = kl_estimate(old, reference, "k1")  # [R]
    totals = torch.zeros(len(packed.weights), dtype=torch.float64, device=kl.device).index_add(0, packed.sequences, kl)
    to_go = totals.cumsum(0)[packed.sequences] - kl.cumsum(0) + kl
    return _constant(packed.advantages, packed.mask) - coefficient * torch.where(fresh, to_go, 0.0)


def _regularisers(packed: PackedTokens, loss: LossConfig) -> Tensor:
    """The weighted terms of KL and entropy ``[R]``, which know no advantage and act on constant groups too."""
    logprobs = _masked(packed.logprobs, packed.kept)
    terms = torch.zeros_like(logprobs)
    if loss.kl_coef and loss.kl_estimator != "k1" and packed.reference_logprobs is not None:
        reference = _constant(packed.reference_logprobs, packed.kept)
        terms = terms + loss.kl_coef * kl_estimate(logprobs, reference, loss.kl_estimator)
    if loss.entropy_coef and packed.entropy is not None:
        terms = terms - loss.entropy_coef * _masked(packed.entropy, packed.kept)
    weights = packed.weights if packed.regulariser_weights is None else packed.regulariser_weights
    return torch.where(packed.kept, weights.double()[packed.sequences] * terms, 0.0)


def _sums(packed: PackedTokens, loss: LossConfig, replay: ReplayConfig, weighted: Tensor, ratio: Tensor) -> LossSums:
    """Sums ``[2, columns]`` and largest ratios ``[2]`` of fresh and replayed tokens."""
    mask, advantages = packed.mask, _masked(packed.advantages, packed.mask)
    logprobs, reference, entropy = _masked(packed.logprobs, packed.kept), packed.reference_logprobs, packed.entropy
    zeros, ones, kept = torch.zeros_like(ratio), mask.double(), packed.kept.double()
    low, high, dual = _clipped(packed, loss, ratio, advantages, shaped=replay.shaping > 0)
    columns = {
        "trajectories": ones / _token_counts(packed).clamp(min=1)[packed.sequences],  # each sequence adds up to 1
        "tokens": ones,
        "loss": weighted,
        "advantage": advantages,
        "advantage_mass": advantages.abs(),
        "ratio": torch.where(mask, ratio, 0.0),
        "clip_low": low,
        "clip_high": high,
        "dual_clip": dual,
        "logprob": torch.where(mask, logprobs, 0.0),
        "old_kl": kl_estimate(_masked(packed.logprobs, mask), _masked(packed.old_logprobs, mask), "k3"),
        "reference_tokens": zeros if reference is None else kept,
        "reference_kl": zeros
        if reference is None
        else kl_estimate(logprobs, _masked(reference, packed.kept), loss.kl_estimator),
        "entropy_tokens": zeros if entropy is None else kept,
        "entropy": zeros if entropy is None else _masked(entropy, packed.kept),
    }
    table = torch.stack([columns[name].double() for name in COLUMNS])  # [columns, R]
    replayed = packed.replayed[packed.sequences]
    sources = torch.stack([packed.kept & ~replayed, packed.kept & replayed])  # [2, R]
    largest = torch.where(sources & mask, ratio, 0.0)
    padded = torch.cat([largest, largest.new_zeros(2, 1)], dim=1)  # a maximum over no token is 0
    return LossSums(sources.double() @ table.T, padded.amax(dim=1))


def _clipped(
    packed: PackedTokens, loss: LossConfig, ratio: Tensor, advantages: Tensor, *, shaped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mark the tokens that the clips act on ``[R]``: below, above, dual."""
    acting = packed.mask if packed.high_entropy is None else packed.mask & packed.high_entropy
    if shaped:
        acting = acting & ~packed.replayed[packed.sequences]
    if packed.importance is not None:
        acting = acting & (packed.importance > 0)
    low, high = acting & (ratio < 1 - loss.clip_low), acting & (ratio > 1 + loss.clip_high)
    if loss.surrogate == "cispo":
        return low, high, torch.zeros_like(acting)
    dual = acting & (advantages < 0) & (ratio > (loss.dual_clip or torch.inf))
    return low & (advantages < 0), high & (advantages > 0), dual


def _token_counts(packed: PackedTokens) -> Tensor:
    zeros = torch.zeros(len(packed.weights), dtype=torch.float64, device=packed.mask.device)
    return zeros.index_add(0, packed.sequences, packed.mask.double())  # [S]


def _check_supplied(packed: PackedTokens, loss: LossConfig, replay: ReplayConfig) -> None:
    for wanted, value, name in (
        (loss.kl_coef > 0, packed.reference_logprobs, "kl_coef needs reference_logprobs"),
        (loss.correction is not None, packed.importance, "loss.correction needs importance"),
        (replay.correction is not None, packed.importance, "replay.correction needs importance"),
        (loss.entropy_coef > 0, packed.entropy, "entropy_coef needs entropy"),
        (loss.high_entropy_fraction < 1, packed.high_entropy, "high_entropy_fraction needs high_entropy"),
    ):
        if wanted and value is None:
            raise ValueError(f"{name} of every response token; none was given")
    if loss.high_entropy_fraction == 1 and packed.high_entropy is not None:
        raise ValueError("high_entropy was given, but high_entropy_fraction = 1 trains every token")


def _checked_padded(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The bool mask and the advantages, both ``[S, T]``."""
    shape = logprobs.shape
    if logprobs.ndim != 2 or old.shape != shape or mask.shape != shape or advantages.shape not in (shape, shape[:1]):
        raise ValueError(
            f"logprobs {tuple(shape)}, old_logprobs {tuple(old.shape)} and mask {tuple(mask.shape)} must be [S, T];"
            f" advantages {tuple(advantages.shape)} must be [S] or [S, T]"
        )
    keep = mask != 0
    if not torch.equal(keep.to(mask.dtype), mask):
        raise ValueError("mask must hold 0 and 1 only")
    spread = advantages if advantages.ndim == 2 else advantages[:, None].expand(shape)
    for name, values in (("logprobs", logprobs), ("old_logprobs", old), ("advantages", spread)):
        bad = keep & ~torch.isfinite(values)
        if bad.any():
            at = tuple(int(i) for i in bad.nonzero()[0])
            raise ValueError(f"{name}{list(at)} = {values[at].item()}: must be finite where the mask is 1")
    return keep, spread


def ppo_terms(ratio: Tensor, advantages: Tensor, loss: LossConfig) -> Tensor:
    """p = max(−A·ρ, −A·clip(ρ)) (eq. 4 with clip-higher); where A < 0, at most −A·c (dual clip, arXiv 1912.09729)."""
    clipped = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    terms = torch.maximum(-advantages * ratio, -advantages * clipped)
    if loss.dual_clip is None:
        return terms
    return torch.where(advantages < 0, torch.minimum(terms, -advantages * loss.dual_clip), terms)


def cispo_terms(ratio: Tensor, logprobs: Tensor, advantages: Tensor, loss: LossConfig) -> Tensor:
    """p = −A · sg(clip(ρ)) · log π (CISPO, arXiv 2506.13585): no token's gradient is dropped."""
    clipped = ratio.detach().clamp(1 - loss.clip_low, 1 + loss.clip_high)
    return -advantages * clipped * logprobs


def shaped_terms(ratio: Tensor, advantages: Tensor, gamma: float) -> Tensor:
    """p = −A · f(ρ), f(x) = x / (x + γ) (policy shaping, LUFFY, arXiv 2504.14945; on π/μ: ExGRPO, arXiv 2510.02245).

    No clip: the gradient's weight A · γ ρ / (ρ + γ)² is bounded by A / 4, at ρ = γ.
    """
    return -advantages * ratio / (ratio + gamma)


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Schulman's estimators of KL(π ‖ reference) per token: k1 = δ, k2 = δ²/2, k3 = e^−δ − 1 + δ with δ = l − l_ref.

    As a loss, k1's gradient is zero in expectation on-policy: it belongs in the reward. k2 has the KL's own gradient; k3 is
    GRPO's choice.
    """
    delta = (logprobs - reference).clamp(-LOG_BOUND, LOG_BOUND)
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return delta.square() / 2
    return torch.exp(-delta) - 1 + delta
