"""KL and entropy in the loss: their estimators, and which tokens they act on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlep.algorithms.loss import kl_estimate
from rlep.config.training import LossConfig
from tests.unit.algorithms.algorithm_values import packed_one


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # δ = l − l_ref = 0.5
        ("k1", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
    ],
)
def test_the_kl_estimators_by_hand(estimator: Any, value: float, slope: float) -> None:
    options = LossConfig(kl_coef=0.1, kl_estimator=estimator)
    loss, gradient, sums = packed_one(
        options, logprobs=[-1.0], advantages=[0.0], reference_logprobs=torch.tensor([-1.5], dtype=torch.float64)
    )
    assert loss == pytest.approx(0.1 * value)
    assert gradient == pytest.approx([0.1 * slope])
    assert sums.metrics()["fresh/reference_kl"] == pytest.approx(value)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_constant_group_has_its_kl_and_entropy_by_hand(estimator: Any) -> None:
    # Two sequences of one token each; the second one's group is constant. The policy's mean is over 1 token, that of KL
    # and entropy over 2. Ratios are 1, so the policy's term of the first is -1 and its slope -1. δ = 0.5 and 1.0.
    options = LossConfig(kl_coef=0.1, kl_estimator=estimator, entropy_coef=0.2)
    loss, gradient, sums = packed_one(
        options,
        logprobs=[-1.0, -2.0],
        advantages=[1.0, 9.0],
        mask=[True, False],
        regularised=[True, True],
        sequences=[0, 1],
        weights=torch.tensor([1.0, 0.0], dtype=torch.float64),
        regulariser_weights=torch.tensor([0.5, 0.5], dtype=torch.float64),
        replayed=[False, False],
        reference_logprobs=torch.tensor([-1.5, -3.0], dtype=torch.float64),
        entropy=torch.tensor([0.7, 0.3], dtype=torch.float64),
    )
    kls = {"k2": (0.125, 0.5), "k3": (math.exp(-0.5) - 0.5, math.exp(-1.0))}[estimator]
    slopes = {"k2": (0.5, 1.0), "k3": (1 - math.exp(-0.5), 1 - math.exp(-1.0))}[estimator]
    assert loss == pytest.approx(-1 + 0.05 * sum(kls) - 0.1 * (0.7 + 0.3))
    assert gradient == pytest.approx([-1 + 0.05 * slopes[0], 0.05 * slopes[1]])
    found = sums.metrics()
    assert (found["fresh/tokens"], found["fresh/trajectories"], found["fresh/ratio_mean"]) == (1, 1, 1.0)
    assert found["fresh/logprob_mean"] == -1.0
    assert found["fresh/reference_kl"] == pytest.approx(sum(kls) / 2)
    assert found["fresh/entropy"] == pytest.approx(0.5)
    assert found["fresh/loss"] == pytest.approx(loss)


def test_k2_and_k3_are_never_negative_and_zero_at_equality() -> None:
    delta = torch.linspace(-50, 50, 101, dtype=torch.float64)
    for estimator in ("k2", "k3"):
        values = kl_estimate(delta, torch.zeros_like(delta), estimator)
        assert (values >= 0).all()
        assert values[50] == 0
        assert torch.isfinite(values).all()
