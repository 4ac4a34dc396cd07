"""Corrections of the mismatch between sampler and learner: importance weights and masks by ρ = π_θ0 / μ, in float64.

θ0 is the learner's policy at the start of the step. μ is what sampled the token: for fresh ones another implementation of θ0
or, with staleness, an earlier version; for replayed ones the policy that once wrote them. Truncation as in IMPALA (arXiv
1802.01561), the decoupled objective of AReaL (arXiv 2505.24298); masks as IcePop and masked importance sampling have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlep.algorithms.loss_values import LOG_BOUND
from rlep.config.replay import ReplayConfig
from rlep.config.section import CorrectionConfig, RatioLevel
from rlep.config.training import LossConfig
from rlep.core.types import BoolArray, Float64Array, SequenceBatch


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """The C response tokens of a batch, of R, that one correction acts on, in their order."""

    rows: BoolArray
    """``[R]``: which tokens these are."""
    log_ratios: Float64Array
    """``[C]`` log ρ of each token, not clamped."""
    sums: Float64Array
    """Those summed over each of their sequences."""
    weights: Float64Array
    """``[C]`` factors of the tokens' terms; 0 where the mask leaves a token out."""
    truncated: BoolArray
    """``[C]``: the weight was cut to ``cap``."""
    masked: BoolArray
    """``[C]``: the token is left out."""


def corrected(batch: SequenceBatch, correction: CorrectionConfig, *, replayed: bool) -> Corrected:
    """Correct the trained tokens of a batch that are ``replayed``, or those that are not.

    Raises ``ValueError`` where the batch lacks one of their log-probs.
    """
    if batch.old_logprobs is None or batch.behaviour_logprobs is None:
        raise ValueError("importance weights need the old and the behaviour log-probs of a batch")
    chosen = batch.trained & (batch.replayed == replayed)
    lengths = batch.sampled_lengths[chosen]
    rows = np.repeat(chosen, batch.sampled_lengths)
    log_ratios = batch.old_logprobs[rows].astype(np.float64) - batch.behaviour_logprobs[rows].astype(np.float64)
    if np.isnan(log_ratios).any():
        raise ValueError(
            "importance sampling needs behaviour_logprobs of every token it weighs; some are unknown (NaN)"
        )
    owners = np.repeat(np.arange(len(lengths)), lengths)
    sums = np.asarray(np.bincount(owners, weights=log_ratios, minlength=len(lengths)), dtype=np.float64)  # [S]

    def ratios(level: RatioLevel) -> Float64Array:
        if level == "token":
            return _ratio(log_ratios)
        return _ratio(sums if level == "sequence" else sums / np.maximum(lengths, 1))[owners]

    weights = np.ones(len(log_ratios)) if correction.weight is None else ratios(correction.weight)
    cap = np.inf if correction.cap is None else correction.cap
    masked = np.zeros(len(log_ratios), dtype=np.bool_)
    if correction.mask is not None:
        bounded, high = ratios(correction.mask), np.inf if correction.high is None else correction.high
        masked = (bounded < correction.low) | (bounded > high)
    kept = np.where(masked, 0.0, np.minimum(weights, cap))
    return Corrected(rows, log_ratios, sums, kept, (weights > cap) & ~masked, masked)


def importance(batch: SequenceBatch, loss: LossConfig, replay: ReplayConfig) -> Float64Array | None:
    """Return the factor of every response token's policy term ``[R]``; None where nothing is corrected.

    It is one of the whole update, so that packing and sharding do not change it. Masked tokens stay in the loss's token count.
    """
    if loss.correction is None and replay.correction is None:
        return None
    factors = np.ones(int(batch.sampled_lengths.sum()))
    for correction, replayed in ((loss.correction, False), (replay.correction, True)):
        if correction is not None and (batch.trained & (batch.replayed == replayed)).any():
            part = corrected(batch, correction, replayed=replayed)
            factors[part.rows] = part.weights
    return factors


def correction_metrics(parts: Sequence[Corrected], source: str) -> dict[str, float]:
    """Metrics of a source: means over its corrected tokens in some batches, at least one.

    ``effective``: effective sample size over the number of tokens, (Σ w)² / (C Σ w²). ``chi2`` and ``chi2_sequence``:
    χ²(π_θ0 ‖ μ) = E[ρ²] − 1 of tokens and of whole sequences, whatever the weights are.
    """
    weights = np.concatenate([part.weights for part in parts])
    tokens, sequences = (np.concatenate([getattr(part, name) for part in parts]) for name in ("log_ratios", "sums"))
    mean, square = float(weights.mean()), float(np.square(weights).mean())
    return {
        f"correction/weight/{source}": mean,
        f"correction/truncated/{source}": float(np.concatenate([part.truncated for part in parts]).mean()),
        f"correction/masked/{source}": float(np.concatenate([part.masked for part in parts]).mean()),
        f"correction/effective/{source}": mean**2 / square if square else 0.0,
        f"correction/chi2/{source}": float(np.square(_ratio(tokens)).mean()) - 1,
        f"correction/chi2_sequence/{source}": float(np.square(_ratio(sequences)).mean()) - 1,
    }


def _ratio(logarithms: Float64Array) -> Float64Array:
    return np.exp(np.clip(logarithms, -LOG_BOUND, LOG_BOUND))
