"""The terms of one token in the loss, in float64 torch: surrogates, importance weights, estimators of the KL."""

from __future__ import annotations

import torch
from torch import Tensor

from rlep.config.training import LossConfig


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


def truncated_importance(old: Tensor, behaviour: Tensor, chosen: Tensor, cap: float) -> Tensor:
    """min(π0 / μ, cap) of the chosen tokens, 1 of others, detached ``[R]`` (truncated as in IMPALA, arXiv 1802.01561).

    For fresh tokens μ is another implementation of θ0 (or, with staleness, an earlier version), for replayed ones the policy
    that once sampled them.
    """
    if torch.isnan(behaviour[chosen]).any():
        raise ValueError(
            "importance sampling needs behaviour_logprobs of every token it weighs; some are unknown (NaN)"
        )
    difference = torch.where(chosen, old - behaviour, 0.0)
    return torch.where(chosen, difference.clamp(-20.0, 20.0).exp().clamp(max=cap), 1.0).detach()


def shaped_terms(ratio: Tensor, advantages: Tensor, gamma: float) -> Tensor:
    """p = −A · f(ρ), f(x) = x / (x + γ) (policy shaping, LUFFY, arXiv 2504.14945; on π/μ: ExGRPO, arXiv 2510.02245).

    No clip: the gradient's weight A · γ ρ / (ρ + γ)² is bounded by A / 4, at ρ = γ.
    """
    return -advantages * ratio / (ratio + gamma)


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Schulman's estimators of KL(π ‖ reference) per token: k1 = δ, k2 = δ²/2, k3 = e^−δ − 1 + δ with δ = l − l_ref.

    As a loss, k1's gradient is zero in expectation on-policy; k2 has the KL's own gradient; k3 is GRPO's choice.
    """
    delta = (logprobs - reference).clamp(-20.0, 20.0)
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return delta.square() / 2
    return torch.exp(-delta) - 1 + delta
