"""The packed core that the learner runs: parts add up exactly, every option does what its source says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.corrections import importance
from rlep.algorithms.loss import NO_REPLAY, LossSums, packed_policy_loss, packed_tokens
from rlep.algorithms.loss_values import high_entropy_mask, normalizers, regulariser_normalizers
from rlep.algorithms.packing import Budget, pack, take
from rlep.config.section import CorrectionConfig
from rlep.config.training import Aggregation, LossConfig
from rlep.core.types import SequenceBatch
from tests.unit.algorithms.algorithm_values import FEW, batch_of, packed_one

SEQUENCE = CorrectionConfig(weight="sequence", cap=2.0, mask="geometric", low=0.5, high=1.5)
EVERYTHING = [
    LossConfig(),
    LossConfig(aggregation="prompt-token-mean", dual_clip=None),
    LossConfig(aggregation="seq-mean-token-mean", level="sequence", clip_low=3e-4, clip_high=4e-4),
    LossConfig(aggregation="seq-mean-token-sum", correction=SEQUENCE),
    LossConfig(aggregation="fixed-length"),
    LossConfig(surrogate="cispo", dual_clip=None),
    LossConfig(kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01),
    LossConfig(kl_coef=0.1, kl_estimator="k1"),
    LossConfig(high_entropy_fraction=0.3),
]


def update_of(seed: int) -> tuple[SequenceBatch, dict[str, np.ndarray]]:
    """A random update of a few groups, and per-token values of the policy in training."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 12))
    lengths = generator.integers(1, 8, count).tolist()
    tokens = sum(lengths)
    logprobs = -generator.random(tokens) * 2
    batch = batch_of(
        lengths,
        advantages=generator.normal(0, 1, count).tolist(),
        groups=np.sort(generator.integers(0, 3, count)).tolist(),
        replayed=(generator.random(count) < 0.3).tolist(),
        trained=(generator.random(count) < 0.8).tolist(),
        old=logprobs + generator.normal(0, 0.4, tokens),
        behaviour=logprobs + generator.normal(0, 0.4, tokens),
    )
    if seed % 2:  # some are in KL and entropy alone
        batch = replace(batch, regularised=batch.trained | (generator.random(count) < 0.5))
    return batch, {"logprobs": logprobs, "reference": logprobs - 0.1, "entropy": generator.random(tokens)}


def part_of(
    batch: SequenceBatch, values: dict[str, np.ndarray], options: LossConfig, indices: np.ndarray
) -> tuple[float, dict[int, float], LossSums]:
    """Loss of the sequences at ``indices``, the gradient by token number, and the sums."""
    starts = np.concatenate([[0], np.cumsum(batch.sampled_lengths)])
    at = np.concatenate([np.zeros(0, np.int64), *(np.arange(starts[i], starts[i + 1]) for i in indices)])
    mask = np.repeat(batch.trained, batch.sampled_lengths)
    logprobs = torch.tensor(values["logprobs"][at], requires_grad=True)
    high = None
    if options.high_entropy_fraction < 1:
        high = torch.tensor(high_entropy_mask(values["entropy"], mask, options.high_entropy_fraction)[at])
    factors = importance(batch, options, NO_REPLAY)
    packed = packed_tokens(
        take(batch, indices),
        logprobs,
        normalizers(batch, options, fixed_length=9)[indices],
        reference_logprobs=torch.tensor(values["reference"][at]) if options.kl_coef else None,
        entropy=torch.tensor(values["entropy"][at]),
        high_entropy=high,
        regulariser_weights=regulariser_normalizers(batch, options, fixed_length=9)[indices],
        importance=None if factors is None else factors[at],
    )
    loss, sums = packed_policy_loss(packed, options)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), dict(zip(at.tolist(), logprobs.grad.tolist(), strict=True)), sums


@pytest.mark.parametrize("options", EVERYTHING, ids=lambda options: f"{options.aggregation}-{options.surrogate}")
@FEW
@given(seed=st.integers(0, 10**6), ranks=st.integers(1, 3), budget=st.integers(4, 40))
def test_micro_batches_of_all_ranks_add_up_to_the_update(
    options: LossConfig, seed: int, ranks: int, budget: int
) -> None:
    batch, values = update_of(seed)
    whole, gradient, sums = part_of(batch, values, options, np.arange(len(batch)))
    parts = [
        part_of(batch, values, options, micro) for rank in pack(batch, ranks, Budget(tokens=budget)) for micro in rank
    ]
    assert sum(part[0] for part in parts) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert {token: slope for part in parts for token, slope in part[1].items()} == pytest.approx(gradient)
    added = parts[0][2]
    for part in parts[1:]:
        added = added + part[2]
    torch.testing.assert_close(added.sums, sums.sums)
    assert added.metrics() == pytest.approx(sums.metrics())
    assert sums.sums[:, 2].sum().item() == pytest.approx(whole, abs=1e-12)  # the sources' parts make up the loss


def test_gspo_uses_the_length_normalised_ratio_of_the_sequence() -> None:
    # log-ratios 0.3 and −0.1: s = exp(0.1); clip range wide: p = −2 s for both tokens, weights 1/2 each.
    options = LossConfig(level="sequence", clip_low=0.5, clip_high=0.5)
    loss, gradient, _ = packed_one(
        options, logprobs=[-1.0, -2.0], old_logprobs=[-1.3, -1.9], advantages=[2.0, 2.0], weights=[0.5]
    )
    s = math.exp(0.1)
    assert loss == pytest.approx(-2 * s, rel=1e-6)
    # d(−2 s)/dl_t = −2 s / 2 for each of the two tokens
    assert gradient == pytest.approx([-s, -s], rel=1e-6)


def test_gspo_leaves_masked_tokens_out_of_the_mean() -> None:
    options = LossConfig(level="sequence", clip_low=0.5, clip_high=0.5)
    loss, gradient, _ = packed_one(
        options, logprobs=[-1.0, math.nan], old_logprobs=[-1.2, 7.0], mask=torch.tensor([True, False])
    )
    assert loss == pytest.approx(-math.exp(0.2))
    assert gradient == pytest.approx([-math.exp(0.2), 0.0])


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    # ratios e (clipped to 1.28) and 1: loss = −(1.28·(−1) + 1·(−2)); the gradient is the clipped ratio itself
    options = LossConfig(surrogate="cispo", dual_clip=None)
    loss, gradient, sums = packed_one(options, logprobs=[-1.0, -2.0], old_logprobs=[-2.0, -2.0])
    assert loss == pytest.approx(3.28)
    assert gradient == pytest.approx([-1.28, -1.0])
    assert sums.metrics()["fresh/clip_fraction_high"] == 0.5


def test_cispo_without_a_clip_range_and_advantage_1_is_maximum_likelihood() -> None:
    options = LossConfig(surrogate="cispo", dual_clip=None, clip_low=0.0, clip_high=0.0)
    loss, gradient, _ = packed_one(options, logprobs=[-1.0, -2.0], old_logprobs=[-9.0, 0.0])
    assert (loss, gradient) == (3.0, [-1.0, -1.0])


def test_importance_multiplies_the_terms_and_their_gradients() -> None:
    # Weights 2, 1/e and 0; the token with weight 0 is left out, and its clip is not counted.
    values: dict[str, Any] = {
        "logprobs": [-1.0, -2.0, -3.0],
        "old_logprobs": [-1.0, -2.0, -4.0],
        "importance": torch.tensor([2.0, math.exp(-1), 0.0], dtype=torch.float64),
    }
    loss, gradient, sums = packed_one(LossConfig(correction=SEQUENCE), **values)
    assert loss == pytest.approx(-(2 + math.exp(-1)))
    assert gradient == pytest.approx([-2, -math.exp(-1), 0])
    assert sums.metrics()["fresh/tokens"] == 3
    assert sums.metrics()["fresh/clip_fraction_high"] == 0


def test_the_entropy_bonus_is_taken_off_the_loss() -> None:
    entropy = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    loss, _, sums = packed_one(
        LossConfig(entropy_coef=0.1), logprobs=[-1.0, -1.0], advantages=[0.0, 0.0], entropy=entropy
    )
    assert loss == pytest.approx(-0.2)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.1, -0.1])
    assert sums.metrics()["fresh/entropy"] == pytest.approx(1.0)


def test_low_entropy_tokens_lose_their_policy_term_but_keep_their_place_in_the_count() -> None:
    # Two of five tokens are the top 40 %; every token's loss is −1, the normaliser stays 5.
    entropies = [0.1, 0.9, 0.2, 0.8, 0.3]
    kept = high_entropy_mask(entropies, [True] * 5, 0.4)
    assert kept.tolist() == [False, True, False, True, False]
    options = LossConfig(high_entropy_fraction=0.4)
    loss, gradient, sums = packed_one(options, logprobs=[-1.0] * 5, weights=[0.2], high_entropy=torch.from_numpy(kept))
    assert loss == pytest.approx(-0.4)
    assert gradient == pytest.approx([0, -0.2, 0, -0.2, 0])
    assert sums.metrics()["fresh/tokens"] == 5


def test_the_entropy_threshold_is_of_unmasked_tokens_and_keeps_ties() -> None:
    assert high_entropy_mask([9, 1, 2, 2], [False, True, True, True], 0.2).tolist() == [False, False, True, True]
    assert high_entropy_mask([9, 1], [False, False], 0.2).tolist() == [False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LossConfig(kl_coef=0.1), "kl_coef needs reference_logprobs of every response token"),
        (LossConfig(correction=SEQUENCE), "loss.correction needs importance"),
        (LossConfig(entropy_coef=0.1), "entropy_coef needs entropy"),
        (LossConfig(high_entropy_fraction=0.2), "high_entropy_fraction needs high_entropy"),
    ],
)
def test_an_option_without_its_input_is_refused(options: LossConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_one(options, logprobs=[-1.0])


def test_a_high_entropy_mask_that_no_option_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="high_entropy_fraction = 1 trains every token"):
        packed_one(LossConfig(), logprobs=[-1.0], high_entropy=torch.tensor([True]))


def test_metrics_tell_fresh_from_replayed_tokens() -> None:
    # fresh: ratios 1 and e^0.5 (clipped); replay: ratio e^−1 at A < 0 (clipped below), one masked token
    _, _, sums = packed_one(
        LossConfig(),
        logprobs=[-1.0, -1.0, -2.0, -4.0],
        old_logprobs=[-1.0, -1.5, -1.0, -4.0],
        advantages=[1.0, 1.0, -2.0, -2.0],
        mask=[True, True, True, False],
        sequences=[0, 0, 1, 1],
        weights=[0.5, 0.25],
        replayed=[False, True],
    )
    metrics = sums.metrics()
    expected = {
        "fresh/trajectories": 1,
        "fresh/tokens": 2,
        "fresh/loss": -0.5 - 0.64,
        "fresh/ratio_mean": (1 + math.exp(0.5)) / 2,
        "fresh/ratio_max": math.exp(0.5),
        "fresh/clip_fraction_high": 0.5,
        "fresh/clip_fraction_low": 0,
        "fresh/logprob_mean": -1,
        "replay/trajectories": 1,
        "replay/tokens": 1,
        "replay/loss": 0.25 * 2 * 0.8,
        "replay/ratio_max": math.exp(-1),
        "replay/clip_fraction_low": 1,
        "replay/advantage_mean": -2,
        "replay/advantage_mass": 2,
        "replay/logprob_mean": -2,
        "replay/old_kl": math.exp(1) - 1 - 1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert "fresh/entropy" not in metrics
    assert "replay/reference_kl" not in metrics


def test_a_source_without_tokens_has_counts_and_no_means() -> None:
    metrics = packed_one(LossConfig(), logprobs=[-1.0])[2].metrics()
    assert {name: value for name, value in metrics.items() if name.startswith("replay/")} == {
        "replay/trajectories": 0,
        "replay/tokens": 0,
        "replay/loss": 0,
    }


def test_a_sequence_that_is_not_trained_weighs_nothing_and_counts_nothing() -> None:
    batch = batch_of([2, 3], advantages=[1.0, 1.0], trained=[True, False], old=np.zeros(5))
    assert normalizers(batch, LossConfig()).tolist() == [0.5, 0.0]
    logprobs = torch.tensor([0.0, 0.0, math.nan, 0.0, 0.0], requires_grad=True)
    loss, sums = packed_policy_loss(packed_tokens(batch, logprobs, normalizers(batch, LossConfig())), LossConfig())
    loss.backward()
    assert loss.item() == -1
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, -0.5, 0, 0, 0]
    assert sums.metrics()["fresh/trajectories"] == 1


@pytest.mark.parametrize(
    ("aggregation", "weight"),
    [  # 2 trained tokens of one group beside 3 counted ones of another
        ("token-mean", 1 / 5),
        ("prompt-token-mean", 1 / (2 * 2)),
        ("seq-mean-token-mean", 1 / (2 * 2)),
        ("seq-mean-token-sum", 1 / 2),
        ("fixed-length", 1 / (2 * 9)),
    ],
)
def test_a_sequence_that_is_counted_and_not_trained_only_lightens_the_others(
    aggregation: Aggregation, weight: float
) -> None:
    batch = batch_of([2, 3, 4], advantages=[1.0, 0.0, 0.0], trained=[True, False, False], old=np.zeros(9))
    batch = replace(batch, groups=np.arange(3, dtype=np.int32), counted=np.array([True, True, False]))
    assert normalizers(batch, LossConfig(aggregation=aggregation), fixed_length=9).tolist() == [weight, 0.0, 0.0]
    assert normalizers(take(batch, [0, 2]), LossConfig()).tolist() == [0.5, 0.0]


def test_an_update_with_nothing_to_train_is_zero() -> None:
    batch = batch_of([2], advantages=[1.0], trained=[False], old=np.zeros(2))
    assert normalizers(batch, LossConfig()).tolist() == [0.0]


def test_only_the_policy_in_training_gets_a_gradient() -> None:
    others = {
        name: torch.tensor([-0.5], dtype=torch.float64, requires_grad=True)
        for name in ("old_logprobs", "advantages", "reference_logprobs")
    }
    packed_one(LossConfig(kl_coef=0.1), logprobs=[-0.4], **others)
    assert all(values.grad is None for values in others.values())


def test_a_batch_that_does_not_fit_is_refused() -> None:
    batch = batch_of([2, 3], old=np.zeros(5))
    with pytest.raises(ValueError, match=r"logprobs of shape \(4,\) and 2 weights for 2 sequences of 5 response"):
        packed_tokens(batch, torch.zeros(4), np.zeros(2))
    with pytest.raises(ValueError, match="no old_logprobs: score it under θ0"):
        packed_tokens(replace(batch, old_logprobs=None), torch.zeros(5), np.zeros(2))
