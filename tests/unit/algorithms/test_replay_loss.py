"""Corrections of replayed tokens, against a second implementation in plain loops, and their numbers by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlep.algorithms.corrections import importance
from rlep.algorithms.loss import packed_policy_loss, packed_tokens, shaped_terms
from rlep.algorithms.loss_values import normalizers
from rlep.config.replay import ReplayConfig
from rlep.config.section import CorrectionConfig
from rlep.config.training import LossConfig
from tests.unit.algorithms.algorithm_values import batch_of

Rules = tuple[LossConfig, ReplayConfig]
LOSS = LossConfig()


def replay_of(**values: Any) -> ReplayConfig:
    return ReplayConfig(count=1, **values)


OPTIONS = [
    (LOSS, replay_of()),
    (LOSS, replay_of(weight=0.083)),
    (LOSS, replay_of(weight=0.0)),
    (LOSS, replay_of(shaping=0.1)),
    (LossConfig(aggregation="seq-mean-token-mean"), replay_of(weight=0.5)),
    (LossConfig(dual_clip=None), replay_of(shaping=0.5, weight=2.0)),
    (LOSS, replay_of(correction=CorrectionConfig(weight="token", cap=1.5))),
    (
        LossConfig(aggregation="seq-mean-token-mean"),
        replay_of(correction=CorrectionConfig(weight="token", cap=1.0), weight=0.5),
    ),
]


def token(new: float, old: float, sampler: float, advantage: float, replayed: bool, rules: Rules) -> float:
    """The loss of one token, from the formulas."""
    loss, replay = rules
    ratio = math.exp(new - old)
    if replayed and replay.shaping:
        term = -advantage * ratio / (ratio + replay.shaping)
    else:
        clipped = min(max(ratio, 0.8), 1.28)
        term = max(-advantage * ratio, -advantage * clipped)
        if advantage < 0 and loss.dual_clip is not None:
            term = min(term, -advantage * loss.dual_clip)
    if replayed and replay.correction is not None and replay.correction.cap is not None:
        term *= min(math.exp(old - sampler), replay.correction.cap)
    return term * replay.weight if replayed else term


@pytest.mark.parametrize("rules", OPTIONS, ids=[str(number) for number in range(len(OPTIONS))])
def test_loss_and_gradient_are_those_of_plain_loops(rules: Rules) -> None:
    draw = np.random.default_rng(3)
    lengths, replayed = [3, 5, 2, 4], [False, True, True, False]
    advantages = [1.2, 0.7, -0.9, -1.1]
    new = -draw.random(14) * 2
    old, sampler = new + draw.normal(0, 0.5, 14), new + draw.normal(0, 0.5, 14)
    sampler[:3] = np.nan  # of fresh tokens nobody asks
    batch = batch_of(lengths, advantages=advantages, groups=[0, 0, 1, 1], replayed=replayed, old=old, behaviour=sampler)
    weights = normalizers(batch, rules[0])

    def loss_of(values: np.ndarray) -> float:
        total, at = 0.0, 0
        for sequence, length in enumerate(lengths):
            for position in range(at, at + length):
                given = float(old[position]), float(sampler[position]), advantages[sequence], replayed[sequence]
                total += weights[sequence] * token(float(values[position]), *given, rules)
            at += length
        return total

    logprobs = torch.tensor(new, requires_grad=True)
    # Stored as float32; the loops take the same numbers.
    assert batch.old_logprobs is not None
    assert batch.behaviour_logprobs is not None
    old, sampler = batch.old_logprobs.astype(np.float64), batch.behaviour_logprobs.astype(np.float64)
    advantages = [float(value) for value in batch.advantages]
    loss, _ = packed_policy_loss(packed_tokens(batch, logprobs, weights, importance=importance(batch, *rules)), *rules)
    loss.backward()
    assert loss.item() == pytest.approx(loss_of(new), rel=1e-9)
    assert logprobs.grad is not None
    for position in range(14):
        step = np.zeros(14)
        step[position] = 1e-6
        slope = (loss_of(new + step) - loss_of(new - step)) / 2e-6
        assert float(logprobs.grad[position]) == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize(("ratio", "weight"), [(1.0, 0.1 / 1.1**2), (0.1, 0.25), (10.0, 1.0 / 10.1**2)])
def test_the_gradient_weight_of_shaping(ratio: float, weight: float) -> None:
    # g(x) = γ x / (x + γ)²: γ / (1 + γ)² = 0.0826 at 1, its largest, 1/4, at γ.
    logprob = torch.tensor(math.log(ratio), dtype=torch.float64, requires_grad=True)
    (-shaped_terms(logprob.exp(), torch.tensor(1.0, dtype=torch.float64), 0.1)).backward()
    assert logprob.grad is not None
    assert float(logprob.grad) == pytest.approx(weight, rel=1e-12)


def test_shaped_tokens_are_not_counted_as_clipped() -> None:
    batch = batch_of([1, 1], advantages=[1.0, 1.0], groups=[0, 0], replayed=[False, True], old=np.array([-2.0, -2.0]))
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    for replay, clipped in ((replay_of(), (1.0, 1.0)), (replay_of(shaping=0.1), (1.0, 0.0))):
        _, sums = packed_policy_loss(packed_tokens(batch, logprobs, normalizers(batch, LOSS)), LOSS, replay)
        found = sums.metrics()
        assert (found["fresh/clip_fraction_high"], found["replay/clip_fraction_high"]) == clipped


def test_importance_sampling_needs_the_samplers_log_probs() -> None:
    batch = batch_of([1], advantages=[1.0], groups=[0], replayed=[True], old=np.array([-1.0]))
    rule = replay_of(correction=CorrectionConfig(weight="token", cap=2.0))
    with pytest.raises(ValueError, match="need the old and the behaviour log-probs"):
        importance(batch, LOSS, rule)
    with pytest.raises(ValueError, match=r"replay\.correction needs importance of every response token"):
        packed_policy_loss(packed_tokens(batch, torch.zeros(1), normalizers(batch, LOSS)), LOSS, rule)
