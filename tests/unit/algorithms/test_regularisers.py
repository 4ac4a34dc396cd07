"""KL and entropy in the loss: their estimators, and which tokens they act on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from rlep.algorithms.loss import PackedTokens, kl_estimate, packed_policy_loss
from rlep.config.training import LossConfig
from tests.unit.algorithms.algorithm_values import packed_one


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # δ = l − l_ref = 0.5
        ("k1", 0.5, 0.5),  # in the reward: −0.1 δ is the advantage
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


@pytest.mark.parametrize(("coefficient", "policy"), [(0.0, (0.0, 0.0)), (0.25, (-0.25, 0.75))])
def test_the_rewards_have_a_coefficient_of_their_own_beside_the_kl(
    coefficient: float, policy: tuple[float, float]
) -> None:
    # Ratios are 1, so the policy's terms are −c·A with A = 1 and −3. δ = 0.5 of the fresh token and −1 of the replayed one.
    options = LossConfig(kl_coef=0.2, kl_estimator="k2", reward_coef=coefficient)
    loss, gradient, _ = packed_one(
        options,
        logprobs=[-1.0, -3.0],
        advantages=[1.0, -3.0],
        mask=[True, True],
        sequences=[0, 1],
        weights=torch.tensor([0.5, 0.5], dtype=torch.float64),
        replayed=[False, True],
        reference_logprobs=torch.tensor([-1.5, -2.0], dtype=torch.float64),
    )
    assert loss == pytest.approx(0.5 * (sum(policy) + 0.2 * (0.125 + 0.5)))
    assert gradient == pytest.approx([0.5 * (policy[0] + 0.2 * 0.5), 0.5 * (policy[1] - 0.2 * 1.0)])


def test_the_kl_in_the_reward_is_that_of_a_fresh_token_and_all_after_it() -> None:
    # δ of the fresh response: 0.5, −0.25, 1 with β = 0.1; a replay and a masked sequence keep their advantages.
    options = LossConfig(kl_coef=0.1, kl_estimator="k1", clip_high=9.0, dual_clip=None)
    loss, gradient, sums = packed_one(
        options,
        logprobs=[-1.0, -1.0, -1.0, -1.0, math.nan],
        old_logprobs=[-1.0, -1.0, -1.0, -1.0, 5.0],
        mask=[True, True, True, True, False],
        sequences=[0, 0, 0, 1, 2],
        weights=torch.ones(3, dtype=torch.float64),
        replayed=[False, True, False],
        reference_logprobs=torch.tensor([-1.5, -0.75, -2.0, -4.0, math.nan], dtype=torch.float64),
    )
    advantages = [1 - 0.1 * 1.25, 1 - 0.1 * 0.75, 1 - 0.1 * 1.0, 1.0]
    assert loss == pytest.approx(-sum(advantages))
    assert gradient == pytest.approx([*(-value for value in advantages), 0])
    assert sums.metrics()["fresh/advantage_mean"] == pytest.approx(sum(advantages[:3]) / 3)
    assert sums.metrics()["fresh/reference_kl"] == pytest.approx(1.25 / 3)


def test_the_kl_in_the_reward_has_the_gradient_of_the_kl_of_whole_responses() -> None:
    # All eight responses of three tokens of a vocabulary of two; each position has its own logits, given the token before.
    draw = torch.Generator().manual_seed(5)
    logits, other = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=draw)
    logits.requires_grad_(True)

    def logprobs_of(response: tuple[int, ...], table: torch.Tensor) -> torch.Tensor:
        before = (0, *response[:-1])
        rows = [
            table[at, last].log_softmax(-1)[token]
            for at, (last, token) in enumerate(zip(before, response, strict=True))
        ]
        return torch.stack(rows)

    options = LossConfig(kl_coef=0.3, kl_estimator="k1")
    exact, expected = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for response in itertools.product((0, 1), repeat=3):
        own, reference = logprobs_of(response, logits), logprobs_of(response, other)
        probability = own.sum().exp()
        exact = exact + 0.3 * probability * (own.sum() - reference.sum())
        packed = PackedTokens(
            logprobs=own,
            old_logprobs=own.detach(),
            advantages=torch.zeros(3),
            mask=torch.ones(3, dtype=torch.bool),
            sequences=torch.zeros(3, dtype=torch.int64),
            weights=torch.ones(1),
            replayed=torch.zeros(1, dtype=torch.bool),
            reference_logprobs=reference,
        )
        expected = expected + probability.detach() * packed_policy_loss(packed, options)[0]
    (of_kl,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (of_loss,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(of_loss, of_kl)
    assert of_kl.abs().max() > 0.01


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
    assert (found["fresh/reference_tokens"], found["fresh/entropy_tokens"]) == (2, 2)
    assert found["fresh/loss"] == pytest.approx(loss)


def test_k2_and_k3_are_never_negative_and_zero_at_equality() -> None:
    delta = torch.linspace(-50, 50, 101, dtype=torch.float64)
    for estimator in ("k2", "k3"):
        values = kl_estimate(delta, torch.zeros_like(delta), estimator)
        assert (values >= 0).all()
        assert values[50] == 0
        assert torch.isfinite(values).all()
