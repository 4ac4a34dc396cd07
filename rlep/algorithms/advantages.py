"""Advantages over mixed groups (RLEP, arXiv 2507.07451, eq. 5), in float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlep.core.errors import ConfigError
from rlep.core.types import BoolArray, Float64Array, Int64Array


def group_advantages(
    rewards: ArrayLike, groups: ArrayLike, *, ddof: int = 1, eps: float = 1e-6, scale: bool = True
) -> Float64Array:
    """A_i = (r_i − mean) / (std + eps) within each group, ``[S]``; members of a group may stand anywhere.

    ``scale=False`` leaves out the division (Dr.GRPO, arXiv 2503.20783). A group whose rewards are all equal, and a
    group of one, gets exactly 0.

    Args:
        rewards: ``[S]`` finite numbers.
        groups: ``[S]`` integer ids; equal ids belong together.
        ddof: 0 or 1; 1 divides the variance by n − 1 (the authors' scripts).
        eps: added to the standard deviation.
        scale: whether to divide by the standard deviation.
    """
    if ddof not in (0, 1):
        raise ConfigError(f"ddof = {ddof}: must be 0 or 1")
    if not (math.isfinite(eps) and eps >= 0):
        raise ConfigError(f"eps = {eps}: must be finite and not negative")
    values, index, counts = _grouped(rewards, groups)
    centred = _centred(values, index, counts)  # [S]
    if not scale:
        return centred
    return centred / (_deviations(centred, index, counts, ddof) + eps)[index]


def leave_one_out_advantages(rewards: ArrayLike, groups: ArrayLike) -> Float64Array:
    """RLOO (arXiv 2402.14740): A_i = r_i − mean of the others in its group, ``[S]``; 0 in a group of one."""
    values, index, counts = _grouped(rewards, groups)
    others = np.maximum(counts - 1, 1)
    return _centred(values, index, counts) * (counts / others)[index]


def pass_at_k_advantages(correct: ArrayLike, groups: ArrayLike, *, k: int, scale: bool = True) -> Float64Array:
    """Pass@k training (arXiv 2508.10751, eq. 14 and 15), ``[S]``: mean advantage over all k-subsets that hold a response.

    A subset's reward is 1 if any of its responses is ``correct`` ``[S]``, else 0. Of N responses with N₋ wrong ones, the mean
    over all subsets is R = 1 − C(N₋, k)/C(N, k) and the deviation σ = √(R(1 − R)); so A = (1 − R)/σ of a correct response, and
    (1 − R − C(N₋ − 1, k − 1)/C(N − 1, k − 1))/σ of a wrong one. Exactly 0 where R is 0 or 1, as where N₋ < k or N < k.
    ``scale=False`` leaves out the division. With k = 1 it is ``group_advantages`` of the population deviation.
    """
    values, index, counts = _grouped(np.asarray(correct, dtype=np.float64), groups)
    wrong = np.bincount(index, weights=1 - values, minlength=len(counts)).astype(np.int64)
    table = np.array([_pass_at_k(int(n), int(w), k, scale=scale) for n, w in zip(counts, wrong, strict=True)])
    return np.asarray(table.reshape(-1, 2)[index, values.astype(np.int64)], dtype=np.float64)


def _pass_at_k(count: int, wrong: int, k: int, *, scale: bool) -> tuple[float, float]:
    """Return the advantages of a wrong and of a correct response of one group."""
    if wrong < k or wrong == count:
        return 0.0, 0.0
    missed = math.comb(wrong, k) / math.comb(count, k)  # 1 − R
    divisor = math.sqrt(missed * (1 - missed)) if scale else 1.0
    others_missed = math.comb(wrong - 1, k - 1) / math.comb(count - 1, k - 1)
    return (missed - others_missed) / divisor, missed / divisor


def whitened(advantages: ArrayLike, tokens: ArrayLike) -> Float64Array:
    """(A − mean) / √(variance + 1e-8) over all tokens of a rollout, ``[S]`` (REINFORCE++, arXiv 2501.03262, as verl has it).

    ``tokens`` ``[S]``: trained tokens of each sequence, all of which have its advantage; one without any counts for nothing.
    The variance is divided by the number of tokens − 1. All 0 where every trained advantage is the same.
    """
    values, counts = np.asarray(advantages, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    trained = values[counts > 0]
    if not trained.size or trained.min() == trained.max():
        return np.zeros_like(values)
    total = counts.sum()
    centred = values - (counts * values).sum() / total
    variance = (counts * np.square(centred)).sum() / (total - 1)
    return np.asarray(centred / np.sqrt(variance + 1e-8), dtype=np.float64)


def zero_variance(rewards: ArrayLike, groups: ArrayLike) -> BoolArray:
    """Mark the sequences of groups without signal (all rewards equal, or a group of one), ``[S]``.

    Such groups stay in the loss's token count unless they are dropped by taking them out of ``trained``.
    """
    values, index, counts = _grouped(rewards, groups)
    return _constant(values, index, counts)[index]


def _grouped(rewards: ArrayLike, groups: ArrayLike) -> tuple[Float64Array, Int64Array, Int64Array]:
    values, ids = np.asarray(rewards, dtype=np.float64), np.asarray(groups)
    if values.ndim != 1 or ids.shape != values.shape:
        raise ValueError(f"rewards of shape {values.shape} and groups of shape {ids.shape}: both must be [S]")
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"groups of dtype {ids.dtype}: must be integers")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"rewards[{bad[0]}] = {values[bad[0]]}: every reward must be finite ({bad.size} are not)")
    _, index, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return values, index.astype(np.int64), counts.astype(np.int64)


def _constant(values: Float64Array, index: Int64Array, counts: Int64Array) -> BoolArray:
    lowest, highest = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(lowest, index, values)
    np.maximum.at(highest, index, values)
    return lowest == highest


def _centred(values: Float64Array, index: Int64Array, counts: Int64Array) -> Float64Array:
    means = np.bincount(index, weights=values, minlength=len(counts)) / counts
    # The mean of equal numbers can differ from them by rounding: a constant group is set to 0, not left to luck.
    return np.where(_constant(values, index, counts)[index], 0.0, values - means[index])


def _deviations(centred: Float64Array, index: Int64Array, counts: Int64Array, ddof: int) -> Float64Array:
    """Standard deviation of each group, and 1 where there is none; scaled so that tiny spreads do not underflow."""
    largest = np.zeros(len(counts))
    np.maximum.at(largest, index, np.abs(centred))
    largest[largest == 0] = 1.0
    squares = np.bincount(index, weights=(centred / largest[index]) ** 2, minlength=len(counts))
    deviations = largest * np.sqrt(squares / np.maximum(counts - ddof, 1))
    deviations[squares == 0] = 1.0
    return np.asarray(deviations, dtype=np.float64)
