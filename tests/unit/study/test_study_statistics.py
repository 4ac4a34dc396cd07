"""The statistics of a study, against slow second implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rlep.study.study_statistics import T_QUANTILES, holm, paired, sign_flip_p, t_half_width


def test_sign_flips_are_counted_one_by_one() -> None:
    differences = np.array([0.3, 0.1, -0.05, 0.2, 0.15])
    observed = abs(differences.sum())
    flips = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=5)]
    assert sign_flip_p(differences) == sum(flip >= observed - 1e-12 for flip in flips) / 32
    assert sign_flip_p(np.ones(3)) == 2 / 8
    assert sign_flip_p(np.zeros(4)) == 1.0
    with pytest.raises(ValueError, match="21 seeds"):
        sign_flip_p(np.ones(21))


def test_the_bootstrap_draws_seeds_and_then_questions() -> None:
    draw = np.random.default_rng(3)
    differences = draw.normal(0.1, 0.2, (5, 1)) + draw.normal(0, 0.3, (5, 40))
    found = paired(differences)
    slow = []
    for _ in range(4000):
        rows = differences[draw.integers(0, 5, 5)]
        slow.append(rows[:, draw.integers(0, 40, 40)].mean())
    assert found.mean == pytest.approx(differences.mean())
    assert found.by_seed == pytest.approx(tuple(differences.mean(axis=1)))
    # both intervals are estimates of the same one: within a twentieth of its width
    width = found.high - found.low
    assert found.low == pytest.approx(np.quantile(slow, 0.025), abs=0.05 * width)
    assert found.high == pytest.approx(np.quantile(slow, 0.975), abs=0.05 * width)
    assert paired(differences) == found
    constant = paired(np.full((2, 3), 0.25))
    assert (constant.low, constant.high) == pytest.approx((0.25, 0.25))


def test_holm_by_hand() -> None:
    # sorted: 0.01 · 4, 0.02 · 3, 0.03 · 2, 0.5 · 1; never below the one before
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_the_t_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, deviation 1, two degrees of freedom: 4.303 / sqrt(3)
    assert t_half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.48434, abs=1e-5)
    found = paired(np.array([[1.0], [2.0], [3.0]]))
    assert (found.t_low, found.t_high) == pytest.approx((2 - 2.48434, 2 + 2.48434), abs=1e-5)
    alone = paired(np.array([[1.0, 2.0]]))
    assert (alone.t_low, alone.t_high) == (None, None)


@pytest.mark.parametrize("freedom", range(1, 20))
def test_95_percent_of_the_density_lie_within_the_quantile(freedom: int) -> None:
    end = T_QUANTILES[freedom - 1]
    x = np.linspace(-end, end, 20_001)
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert np.trapezoid(density, x) == pytest.approx(0.95, abs=1e-4)
    assert len(T_QUANTILES) == 19
