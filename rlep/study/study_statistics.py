"""Paired comparisons of a study: bootstrap over seeds and questions, exact sign flips over seeds, Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlep.core.seeds import generator_for
from rlep.core.types import Float64Array

RESAMPLES = 10_000
_LEVEL = 0.95
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
"""0.975 quantiles of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Paired:
    """An arm minus a control."""

    by_seed: tuple[float, ...]
    """Difference of the means over questions, of each seed."""
    mean: float
    low: float
    high: float
    """95 % interval of the mean."""
    p: float
    """Two-sided, by the signs of the seeds' differences; at least 2 / 2^seeds."""
    t_low: float | None = None
    t_high: float | None = None
    """95 % interval by Student's t over the seeds' differences, for these questions; None for one seed."""


def paired(differences: Float64Array, *, seed: int = 0) -> Paired:
    """``differences``: ``[seeds, questions]``, of an endpoint.

    The interval is the percentile bootstrap: seeds are drawn with replacement, then questions, which all seeds share.
    """
    seeds, questions = differences.shape
    draw = generator_for(seed, "study", "bootstrap")
    seed_counts = draw.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    question_counts = draw.multinomial(questions, np.full(questions, 1 / questions), size=RESAMPLES)
    means = ((seed_counts @ differences) * question_counts).sum(axis=1) / (seeds * questions)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    by_seed = differences.mean(axis=1)
    mean, p, half = float(by_seed.mean()), sign_flip_p(by_seed), t_half_width(by_seed)
    ends = (None, None) if half is None else (mean - half, mean + half)
    return Paired(tuple(by_seed.tolist()), mean, float(low), float(high), p, *ends)


def t_half_width(differences: Float64Array) -> float | None:
    """Half the 95 % t interval of a mean of 2 to 20 differences; None for one."""
    count = len(differences)
    return None if count < 2 else float(T_QUANTILES[count - 2] * differences.std(ddof=1) / np.sqrt(count))


def sign_flip_p(differences: Float64Array) -> float:
    """Share of all 2^n sign patterns whose absolute mean is at least the observed one; up to 20 differences."""
    count = len(differences)
    if count > 20:
        raise ValueError(f"{count} seeds: all sign patterns are counted up to 20")
    signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    sums = np.abs(signs @ differences)
    return float(np.mean(sums >= np.abs(differences.sum()) * (1 - 1e-12)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
