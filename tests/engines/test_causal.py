"""Attention written out in batched products is causal attention within each sequence, and so are its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rlep.engines import causal
from rlep.engines.causal import causal_attention, plan_of

CPU = torch.device("cpu")
LENGTHS = np.array([11, 9, 7, 4, 4, 1], dtype=np.int64)
Row = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True, params=[(3, 200, 6), (4, 4, 0), (64, 2**20, 512)])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, several pieces of a block, probabilities kept for some; one matrix a piece and none kept; all at once."""
    for name, value in zip(("_BLOCK", "_PIECE_BYTES", "_KEPT_KEYS"), request.param, strict=True):
        monkeypatch.setattr(causal, name, value)


def random_row(heads: int, key_heads: int, size: int = 4) -> tuple[Row, tuple[Tensor, Tensor]]:
    """A row with gradients in float64, and a rotation whose halves differ."""
    generator, count = torch.Generator().manual_seed(0), int(LENGTHS.sum())
    row = [torch.randn(count, n, size, generator=generator).double() for n in (heads, key_heads, key_heads)]
    angles = torch.randn(count, size, generator=generator).double()
    query, key, value = (tensor.requires_grad_() for tensor in row)
    return (query, key, value), (angles.cos(), angles.sin())


def plain(row: Row, rotation: tuple[Tensor, Tensor] | None, reach: int | None) -> Tensor:
    """Sequence by sequence through torch's own attention with a mask."""
    query, key, value = row
    if rotation is not None:
        cos, sin = (part.unsqueeze(1) for part in rotation)
        query, key = (
            x * cos + torch.cat([-x[..., x.shape[2] // 2 :], x[..., : x.shape[2] // 2]], dim=2) * sin
            for x in (query, key)
        )
    results = []
    for parts in zip(*(x.split(LENGTHS.tolist()) for x in (query, key, value)), strict=True):
        length = len(parts[0])
        seen = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - (reach or length))
        heads_first = (part.transpose(0, 1)[None] for part in parts)
        attended = scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=0.7, enable_gqa=True)
        results.append(attended[0].transpose(0, 1))
    return torch.cat(results)


@pytest.mark.parametrize("reach", [None, 5, 1])
@pytest.mark.parametrize(("heads", "key_heads"), [(2, 2), (6, 2)])
@pytest.mark.parametrize("rotated", [False, True])
def test_values_and_gradients_are_those_of_each_sequence_alone(
    rotated: bool, heads: int, key_heads: int, reach: int | None
) -> None:
    row, rotation = random_row(heads, key_heads)
    chosen = rotation if rotated else None
    pull = torch.randn(row[0].shape, generator=torch.Generator().manual_seed(1)).double()
    got = causal_attention(row, chosen, plan_of(LENGTHS, heads, key_heads, reach, CPU), 0.7)
    wanted = plain(row, chosen, reach)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(result, row, pull) for result in (got, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    row, rotation = random_row(2, 1)
    plan = plan_of(LENGTHS, 2, 1, 5, CPU)
    assert torch.autograd.gradcheck(
        lambda *changed: causal_attention(changed, rotation, plan, 0.7), row, fast_mode=True
    )


def test_a_second_backward_pass_gives_the_same_gradients() -> None:
    row, rotation = random_row(2, 1)
    result = causal_attention(row, rotation, plan_of(LENGTHS, 2, 1, None, CPU), 0.7).square().sum()
    once, twice = (torch.autograd.grad(result, row, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, once, twice))


def test_keys_are_padded_little_and_queries_hardly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "_BLOCK", 4)
    monkeypatch.setattr(causal, "_PIECE_BYTES", 2**20)
    plan = plan_of(LENGTHS, 1, 1, None, CPU)
    # 4 is below half of 11, 1 below half of 4.
    assert plan.buckets == ((3, 11), (2, 4), (1, 1))
    # Rows 0-3 and 4-7 of all of 11, 9 and 7 (the last has a pad), 8-10 of 11 and 9 (two pads); then two of 4, one of 1.
    assert [piece.queries.stop - piece.queries.start for piece in plan.pieces] == [12, 12, 6, 8, 1]
    assert plan.pads.tolist() == [23, 28, 29]
    assert plan.queries[plan.pads].tolist() == [26, 19, 19]  # the last tokens of the sequences of 7 and 9
    tokens = list(range(int(LENGTHS.sum())))
    assert plan.queries[plan.query_slots].tolist() == plan.keys[plan.key_slots].tolist() == tokens
    assert len(plan.keys) == 3 * 11 + 2 * 4 + 1
