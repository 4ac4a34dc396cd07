"""Attention written out in batched products is causal attention within each sequence, and so are its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rlep.engines.cpu import causal
from rlep.engines.cpu.causal import causal_attention, plan_of, rotations_of

CPU = torch.device("cpu")
LENGTHS = np.array([11, 9, 7, 4, 4, 1], dtype=np.int64)
HEADS = [(2, 2), (6, 2)]


@pytest.fixture(autouse=True, params=[(3, 200, 6), (4, 4, 0), (64, 2**20, 512)])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, several pieces of a block, probabilities kept for some; one matrix a piece and none kept; all at once."""
    for name, value in zip(("_BLOCK", "_PIECE_BYTES", "_KEPT_KEYS"), request.param, strict=True):
        monkeypatch.setattr(causal, name, value)


def random_row(heads: int, key_heads: int, size: int = 4) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Query, key and value heads with gradients in float64, and a rotation."""
    generator, count = torch.Generator().manual_seed(0), int(LENGTHS.sum())
    row = torch.randn(count, heads + 2 * key_heads, size, generator=generator).double()
    angles = torch.randn(count, size // 2, generator=generator).double()
    return row.requires_grad_(), (angles.cos(), angles.sin())


def ours(row: Tensor, rotation: tuple[Tensor, Tensor] | None, heads: tuple[int, int], reach: int | None) -> Tensor:
    plan = plan_of(LENGTHS, *heads, reach, CPU)
    rotations = None if rotation is None else rotations_of(*rotation, plan, 0.7)
    return causal_attention(row, rotations, plan, 0.7)


def plain(row: Tensor, rotation: tuple[Tensor, Tensor] | None, heads: tuple[int, int], reach: int | None) -> Tensor:
    """Sequence by sequence through torch's own attention with a mask."""
    query, key, value = row.split([heads[0], heads[1], heads[1]], 1)
    if rotation is not None:
        cos, sin = (part.unsqueeze(1) for part in rotation)
        query, key = (
            torch.stack([x[..., ::2] * cos - x[..., 1::2] * sin, x[..., ::2] * sin + x[..., 1::2] * cos], 3).flatten(2)
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
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rotated", [False, True])
def test_values_and_gradients_are_those_of_each_sequence_alone(
    rotated: bool, heads: tuple[int, int], reach: int | None
) -> None:
    row, rotation = random_row(*heads)
    chosen = rotation if rotated else None
    pull = torch.randn(len(row), heads[0], 4, generator=torch.Generator().manual_seed(1)).double()
    results = [attention(row, chosen, heads, reach) for attention in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(result, row, pull) for result in results]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    row, rotation = random_row(2, 1)
    assert torch.autograd.gradcheck(lambda changed: ours(changed, rotation, (2, 1), 5), row, fast_mode=True)


def test_a_second_backward_pass_gives_the_same_gradients() -> None:
    row, rotation = random_row(2, 1)
    result = ours(row, rotation, (2, 1), None).square().sum()
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
    assert plan.queries[plan.query_places].tolist() == tokens
    # One query, one key and one value head: token t has the numbers 3 t, 3 t + 1 and 3 t + 2 of the row.
    assert plan.sources[plan.places].tolist() == list(range(3 * len(tokens)))
    keys = 3 * 11 + 2 * 4 + 1
    assert len(plan.sources) == len(plan.queries) + 2 * keys
    assert plan.tokens.tolist() == (plan.sources[: len(plan.queries) + keys] // 3).tolist()
    assert plan.sources[-keys:].tolist() == (plan.sources[-2 * keys : -keys] + 1).tolist()
