"""The loss of padded sequences: numbers by hand, a slow float64 reference, and properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.loss import policy_loss
from tests.golden import reference_update as reference
from tests.unit.algorithms.algorithm_values import PROPERTY

AGGREGATIONS = ["token-mean", "prompt-token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
LARGE = 50.0


def case_of(seed: int, *, spread: float = 1.0, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """A random batch with ragged masks, holes, an empty row, and uneven groups in shuffled order."""
    generator = np.random.default_rng(seed)
    count, length = int(generator.integers(1, 9)), int(generator.integers(1, 7))
    mask = generator.random((count, length)) < 0.7
    mask[generator.random(count) < 0.2] = False
    logprobs = -generator.random((count, length)) * 3
    return {
        "logprobs": torch.tensor(logprobs, dtype=dtype, requires_grad=True),
        "old_logprobs": torch.tensor(logprobs + generator.normal(0, spread, (count, length)), dtype=dtype),
        "advantages": torch.tensor(generator.normal(0, 1.5, count) * (generator.random(count) < 0.8), dtype=dtype),
        "mask": torch.tensor(mask, dtype=torch.int64),
        "groups": generator.permutation(generator.integers(0, 3, count)),
    }


def reference_of(case: dict[str, Any], aggregation: Any, **clips: Any) -> tuple[float, list[list[float]]]:
    """The slow reference on the same batch."""
    columns = (case[name].detach().tolist() for name in ("logprobs", "old_logprobs", "mask"))
    sequences = [list(zip(*rows, strict=True)) for rows in zip(*columns, strict=True)]
    weights = reference.token_weights(sequences, aggregation, case["groups"].tolist())
    return reference.policy_loss(sequences, case["advantages"].tolist(), weights, **clips)


def test_one_token_of_every_case_by_hand() -> None:
    ratios = torch.tensor([[1.0], [1.5], [0.5], [1.5], [0.5], [12.0]])
    advantages = torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0, -1.0])
    # inside; clipped at 1.28; not clipped below; not clipped above; clipped at 0.8; dual clip at 10
    expected = [-2.0, -2.56, -1.0, 1.5, 0.8, 10.0]
    slopes = [-2.0, 0.0, -1.0, 1.5, 0.0, 0.0]
    logprobs = ratios.log().requires_grad_()
    loss, stats = policy_loss(logprobs, torch.zeros(6, 1), advantages, torch.ones(6, 1))
    loss.backward()
    assert loss.item() == pytest.approx(sum(expected) / 6)
    assert logprobs.grad is not None
    assert logprobs.grad[:, 0].tolist() == pytest.approx([slope / 6 for slope in slopes])
    assert dict(stats) == pytest.approx(
        {"clip_fraction_low": 1 / 6, "clip_fraction_high": 1 / 6, "dual_clip_fraction": 1 / 6}
    )
    assert stats.clip_fraction_low == stats["clip_fraction_low"]


def test_without_dual_clip_the_loss_is_equation_4() -> None:
    loss, stats = policy_loss(
        torch.tensor([[12.0]]).log(), torch.zeros(1, 1), torch.tensor([-1.0]), torch.ones(1, 1), dual_clip=None
    )
    assert loss.item() == pytest.approx(12.0)
    assert stats.dual_clip_fraction == 0


def test_the_aggregations_by_hand() -> None:
    # Ratio 1 and advantage −1 make every token's loss 1, −2 makes it 2: group 0 has 3 tokens of 1 and 1 of 2,
    # group 1 has 2 tokens of 2.
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0]])
    zeros = torch.zeros(4, 3)
    advantages = torch.tensor([-1.0, -2.0, -2.0, -5.0])
    expected: dict[Any, float] = {
        "token-mean": 9 / 6,
        "prompt-token-mean": (5 / 4 + 4 / 2) / 2,
        "seq-mean-token-mean": (1 + 2 + 2) / 3,
        "seq-mean-token-sum": (3 + 2 + 4) / 3,
    }
    for aggregation, value in expected.items():
        loss, _ = policy_loss(zeros, zeros, advantages, mask, aggregation=aggregation, groups=[0, 0, 1, 1])
        assert loss.item() == pytest.approx(value), aggregation
    fixed, _ = policy_loss(zeros, zeros, advantages, mask, aggregation="fixed-length", fixed_length=6)
    assert fixed.item() == pytest.approx(9 / (3 * 6))


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from(AGGREGATIONS), st.sampled_from([0.01, 1.0, 25.0]), st.booleans())
def test_the_slow_reference_agrees_in_value_and_gradient(
    seed: int, aggregation: Any, spread: float, dual: bool
) -> None:
    case = case_of(seed, spread=spread)
    clips: dict[str, Any] = {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3.0 if dual else None}
    loss, _ = policy_loss(**case, aggregation=aggregation, **clips)
    loss.backward()
    expected, gradient = reference_of(case, aggregation, **clips)
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(case["logprobs"].grad.numpy(), gradient, rtol=1e-5, atol=1e-6)


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from(AGGREGATIONS))
def test_float32_inputs_lose_nothing_to_large_ratios(seed: int, aggregation: Any) -> None:
    case = case_of(seed, spread=8.0, dtype=torch.float32)
    loss, _ = policy_loss(**case, aggregation=aggregation, dual_clip=None)
    loss.backward()
    expected, gradient = reference_of(case, aggregation, dual_clip=None)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(case["logprobs"].grad.numpy(), gradient, rtol=1e-5, atol=1e-6)


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from(AGGREGATIONS))
def test_neither_the_order_nor_all_masked_rows_change_anything(seed: int, aggregation: Any) -> None:
    case = case_of(seed)
    count, length = case["mask"].shape
    straight, _ = policy_loss(**case, aggregation=aggregation)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    garbage = torch.full((2, length), math.nan, dtype=torch.float64)
    padded, _ = policy_loss(
        torch.cat([case["logprobs"][order], garbage]),
        torch.cat([case["old_logprobs"][order], -garbage]),
        torch.cat([case["advantages"][order], torch.tensor([3.0, math.inf], dtype=torch.float64)]),
        torch.cat([case["mask"][order], torch.zeros(2, length, dtype=torch.int64)]),
        aggregation=aggregation,
        groups=np.concatenate([case["groups"][order.numpy()], [0, 77]]),
    )
    assert padded.item() == pytest.approx(straight.item(), rel=1e-9, abs=1e-12)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_parts_with_the_global_token_count_add_up(seed: int, parts: int) -> None:
    case = case_of(seed)
    del case["groups"]
    total = int(case["mask"].sum())
    whole, _ = policy_loss(**case)
    (expected,) = torch.autograd.grad(whole, case["logprobs"])
    added = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(len(case["mask"])).chunk(parts):
        part = {name: values[rows] for name, values in case.items()}
        added = added + policy_loss(**part, token_count=total)[0]
    (gradient,) = torch.autograd.grad(added, case["logprobs"])
    assert added.item() == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("gap", [-LARGE, -20.0, 20.0, LARGE])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("dual_clip", [None, 10.0])
def test_extreme_ratios_stay_finite(gap: float, advantage: float, dual_clip: float | None) -> None:
    logprobs = torch.tensor([[gap - 60]], requires_grad=True)
    loss, _ = policy_loss(
        logprobs, torch.tensor([[-60.0]]), torch.tensor([advantage]), torch.ones(1, 1), dual_clip=dual_clip
    )
    loss.backward()
    assert logprobs.grad is not None
    expected = {
        (1.0, True): -1.28,  # clipped above
        (1.0, False): -math.exp(-20),
        (-1.0, True): math.exp(20) if dual_clip is None else 10.0,
        (-1.0, False): 0.8,
    }.get((advantage, gap > 0), 0.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    if abs(gap) == LARGE:
        assert logprobs.grad.item() == 0


def test_garbage_at_masked_positions_reaches_neither_loss_nor_gradient() -> None:
    logprobs = torch.tensor([[-1.0, math.nan, math.inf, -math.inf]], requires_grad=True)
    old = torch.tensor([[-1.0, -math.inf, math.nan, 5.0]])
    advantages = torch.tensor([[2.0, math.nan, math.inf, 0.0]])
    loss, stats = policy_loss(logprobs, old, advantages, torch.tensor([[1, 0, 0, 0]]))
    loss.backward()
    assert loss.item() == -2
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-2.0, 0.0, 0.0, 0.0]]
    assert dict(stats) == {"clip_fraction_low": 0, "clip_fraction_high": 0, "dual_clip_fraction": 0}


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_mask_gives_zero_with_a_gradient_of_zero(shape: tuple[int, int], aggregation: Any) -> None:
    logprobs = torch.full(shape, math.nan, requires_grad=True)
    loss, _ = policy_loss(
        logprobs,
        torch.zeros(shape),
        torch.ones(shape[0]),
        torch.zeros(shape),
        aggregation=aggregation,
        groups=[0] * shape[0],
    )
    loss.backward()
    assert loss.item() == 0
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def test_advantages_may_differ_from_token_to_token() -> None:
    zeros = torch.zeros(1, 2)
    loss, _ = policy_loss(zeros, zeros, torch.tensor([[1.0, -3.0]]), torch.ones(1, 2))
    assert loss.item() == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregation": "mean"}, "loss.aggregation = 'mean': must be 'token-mean', 'prompt-token-mean'"),
        ({"old_logprobs": torch.zeros(2, 2)}, r"logprobs \(2, 3\), old_logprobs \(2, 2\)"),
        ({"advantages": torch.zeros(3)}, r"advantages \(3,\) must be \[S\] or \[S, T\]"),
        ({"mask": torch.full((2, 3), 0.5)}, "mask must hold 0 and 1 only"),
        ({"logprobs": torch.full((2, 3), math.nan)}, r"logprobs\[0, 0\] = nan: must be finite where the mask is 1"),
        ({"advantages": torch.tensor([0.0, math.inf])}, r"advantages\[1, 0\] = inf: must be finite"),
        ({"aggregation": "prompt-token-mean"}, "needs the group of each sequence: pass groups"),
        ({"aggregation": "prompt-token-mean", "groups": [1]}, r"groups of shape \(1,\) for 2 sequences"),
        ({"groups": [1]}, r"groups of shape \(1,\) for 2 sequences"),
        ({"token_count": 5}, "token_count = 5: this call alone has 6 unmasked tokens"),
        ({"token_count": math.nan}, "token_count = nan: must be a finite number"),
        ({"token_count": math.inf}, "token_count = inf: must be a finite number"),
        (
            {"token_count": 9, "aggregation": "seq-mean-token-sum"},
            "token_count = 9 cannot normalise a part of 6 tokens under 'seq-mean-token-sum'",
        ),
        ({"clip_low": 1.5}, r"loss\.clip_low = 1\.5: must be less than 1"),
        ({"dual_clip": 1.0}, r"loss\.dual_clip = 1\.0: must be more than 1"),
        ({"aggregation": "fixed-length"}, "fixed_length = None with aggregation 'fixed-length'"),
        ({"fixed_length": 5}, "fixed_length = 5 with aggregation 'token-mean': fixed-length divides by it"),
    ],
)
def test_bad_input_names_the_value(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "logprobs": torch.zeros(2, 3),
        "old_logprobs": torch.zeros(2, 3),
        "advantages": torch.zeros(2),
        "mask": torch.ones(2, 3),
    }
    with pytest.raises(ValueError, match=message):
        policy_loss(**(arguments | changes))
