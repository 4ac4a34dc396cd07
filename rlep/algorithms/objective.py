"""The weights of the loss over a whole update, without torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlep.config.training import LossConfig
from rlep.core.types import BoolArray, Float64Array, Int64Array, SequenceBatch


def normalizers(batch: SequenceBatch, loss: LossConfig, *, fixed_length: int = 0) -> Float64Array:
    """The weight of each sequence's tokens ``[S]``, such that the update's loss is Σ over tokens of weight · p.

    Computed once from the whole update, it makes every packing and sharding exact: parts only add sums.
    Sequences that are not trained weigh 0. All weights are 0 where nothing is trained. ``fixed_length``: see
    ``sequence_weights``.
    """
    return sequence_weights(
        np.where(batch.trained, batch.response_lengths, 0), batch.groups, loss, fixed_length=fixed_length
    )


def regulariser_normalizers(batch: SequenceBatch, loss: LossConfig, *, fixed_length: int = 0) -> Float64Array:
    """The same ``[S]`` for the KL and entropy terms: their mean is over ``batch.regularised``, where that is given."""
    kept = batch.trained if batch.regularised is None else batch.regularised
    return sequence_weights(np.where(kept, batch.response_lengths, 0), batch.groups, loss, fixed_length=fixed_length)


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
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction = {fraction}: must lie in (0, 1]")
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
