"""Causal attention of many sequences at once, written out in batched matrix products.

Queries are taken in blocks of rows. One block of one length reaches the same number of keys in every sequence, so that it
is one batched product over all sequences that are long enough, and nothing above the diagonal but its own block is
computed. Pieces of it are small enough for the cache. The probabilities of short sequences are kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlep.types import Int64Array

_BLOCK = 32
"""Rows of queries that are attended together."""

_SHORTEST_SHARE = 0.5
"""Sequences shorter than this share of their bucket's longest start the next bucket; keys are padded within a bucket."""

_PIECE_BYTES = 512 * 2**10
"""Of the fp32 scores of one piece."""

_KEPT_KEYS = 512
"""Probabilities over at most as many keys are kept, those of others computed again: memory stays linear in the length."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Block of rows ``[start, stop)`` of some neighbouring (sequence, key head) pairs: B matrices, G query heads in each."""

    queries: slice
    """Its query slots, ``B * G * (stop - start)``."""
    bucket: int
    matrices: slice
    """Which of the bucket's (sequence, key head) pairs."""
    start: int
    stop: int
    first: int
    """The first key that some row reaches; the last is ``stop - 1``."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Where the heads of a row's tokens go: queries piece after piece ``[B, G, rows]``, keys by ``[sequence, head, length]``."""

    pieces: tuple[_Piece, ...]
    queries: Tensor
    """(token, head) of every query slot, numbered as in ``[N, H]``; pads repeat their sequence's last token."""
    query_slots: Tensor
    """The slot of every (token, head), ``[N * H]``."""
    pads: Tensor
    """Query slots without a token of their own."""
    keys: Tensor
    """(token, key head) of every key slot."""
    key_slots: Tensor
    """``[N * K]``"""
    buckets: tuple[tuple[int, int], ...]
    """Neighbouring sequences whose keys are padded to one length: how many matrices (S * K), and the length."""
    reach: int | None
    """How many tokens a token sees, itself included; None is all before it."""


def plan_of(lengths: Int64Array, heads: int, key_heads: int, reach: int | None, device: torch.device) -> Plan:
    """The plan for sequences end to end.

    Args:
        lengths: ``[S]``, longest first.
        heads: H, a multiple of K.
        key_heads: K.
        reach: how many tokens a token sees, itself included; None is all before it.
        device: of the plan's tensors.
    """
    bounds, group = np.concatenate([[0], np.cumsum(lengths)]), heads // key_heads
    pieces, queries, real, keys, real_keys, buckets = [], [], [], [], [], []
    taken = 0
    for bucket, members in enumerate(_buckets(lengths)):
        own, length = np.repeat(lengths[members], key_heads), int(lengths[members][0])  # [S * K]
        head = np.tile(np.arange(key_heads), len(lengths[members]))
        rows = np.arange(length)
        tokens = np.repeat(bounds[:-1][members], key_heads)[:, None] + np.minimum(rows, own[:, None] - 1)  # [S * K, L]
        buckets.append((len(own), length))
        keys.append((tokens * key_heads + head[:, None]).reshape(-1))
        real_keys.append((rows < own[:, None]).reshape(-1))
        for matrices, start, stop, first in _cut(own, group, reach):
            heads_of = head[matrices, None] * group + np.arange(group)  # [B, G]
            numbers = tokens[matrices, None, start:stop] * heads + heads_of[:, :, None]  # [B, G, rows]
            queries.append(numbers.reshape(-1))
            real.append(np.broadcast_to((rows < own[:, None])[matrices, None, start:stop], numbers.shape).reshape(-1))
            pieces.append(_Piece(slice(taken, taken + numbers.size), bucket, matrices, start, stop, first))
            taken += numbers.size
    query_slots, pads = _inverse(np.concatenate(queries), np.concatenate(real))
    key_slots, _ = _inverse(np.concatenate(keys), np.concatenate(real_keys))
    return Plan(
        tuple(pieces),
        queries=torch.from_numpy(np.concatenate(queries)).to(device),
        query_slots=torch.from_numpy(query_slots).to(device),
        pads=torch.from_numpy(pads).to(device),
        keys=torch.from_numpy(np.concatenate(keys)).to(device),
        key_slots=torch.from_numpy(key_slots).to(device),
        buckets=tuple(buckets),
        reach=reach,
    )


def _buckets(lengths: Int64Array) -> list[slice]:
    """Neighbouring sequences of similar length."""
    cuts = [0]
    for index, length in enumerate(lengths):
        if length < _SHORTEST_SHARE * lengths[cuts[-1]]:
            cuts.append(index)
    return [slice(a, b) for a, b in pairwise([*cuts, len(lengths)])]


def _cut(lengths: Int64Array, group: int, reach: int | None) -> Iterator[tuple[slice, int, int, int]]:
    """A bucket's matrices of these ``lengths`` (longest first) cut into (matrices, start, stop, first) of pieces."""
    longest = int(lengths[0])
    for start in range(0, longest, _BLOCK):
        stop, first = min(start + _BLOCK, longest), 0 if reach is None else max(0, start - reach + 1)
        size = max(1, _PIECE_BYTES // (4 * group * (stop - start) * (stop - first)))
        count = int((lengths > start).sum())
        for matrix in range(0, count, size):
            yield slice(matrix, min(matrix + size, count)), start, stop, first


def _inverse(indices: Int64Array, real: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Int64Array, Int64Array]:
    """Where each number stands among the real ``indices``, and where the others stand."""
    slots = np.empty(int(real.sum()), dtype=np.int64)
    slots[indices[real]] = np.flatnonzero(real)
    return slots, np.flatnonzero(~real)


def causal_attention(
    row: tuple[Tensor, Tensor, Tensor], rotation: tuple[Tensor, Tensor] | None, plan: Plan, scale: float
) -> Tensor:
    """Causal attention within each sequence.

    Args:
        row: query ``[N, H, D]``, key and value ``[N, K, D]``.
        rotation: cosines and sines ``[N, D]`` by which query and key are still to be rotated (rotary embedding), constants.
        plan: of the row.
        scale: of the scores.

    Returns:
        ``[N, H, D]``
    """
    cos, sin = rotation or (None, None)
    result: Tensor = _Causal.apply(*row, cos, sin, plan, scale)
    return result


class _Causal(torch.autograd.Function):
    """dS = P (dP - sum(dP P)) with P = softmax(S), S = scale · Q Kᵀ, dP = dO Vᵀ."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        query, key, value, cos, sin, plan, scale = given
        queries = _gathered(query, plan.queries)  # [query slots, D]
        keys, values = (_gathered(tensor, plan.keys) for tensor in (key, value))  # [key slots, D]
        if cos is None:
            queries.mul_(scale)
        else:
            _rotate_(queries, cos * scale, sin * scale, plan.queries // query.shape[1])
            _rotate_(keys, cos, sin, plan.keys // key.shape[1])
        by_bucket = [_by_bucket(tensor, plan) for tensor in (keys, values)]
        attended, kept = torch.empty_like(queries), []
        for piece in plan.pieces:
            near_keys, near_values = (_near(tensors, piece) for tensors in by_bucket)
            block = queries[piece.queries].view(len(near_keys), -1, query.shape[2])
            probabilities = _probabilities(block, near_keys, piece, plan.reach)
            torch.bmm(probabilities, near_values, out=attended[piece.queries].view_as(block))
            if any(ctx.needs_input_grad) and _keeps(piece):
                kept.append(probabilities)
        ctx.plan, ctx.scale, ctx.shapes = plan, scale, (query.shape, key.shape)
        ctx.save_for_backward(queries, keys, values, cos, sin, *kept)
        return attended.index_select(0, plan.query_slots).view(query.shape)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        queries, keys, values, cos, sin, *kept = ctx.saved_tensors
        plan, scale, (shape, key_shape), kept = ctx.plan, ctx.scale, ctx.shapes, iter(kept)
        above = _gathered(upstream, plan.queries).index_fill_(0, plan.pads, 0.0)
        grad_queries, grad_keys, grad_values = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(keys)
        by_bucket = [_by_bucket(tensor, plan) for tensor in (keys, values, grad_keys, grad_values)]
        for piece in plan.pieces:
            near_keys, near_values, near_grad_keys, near_grad_values = (_near(tensors, piece) for tensors in by_bucket)
            of = (len(near_keys), -1, shape[2])
            block, above_block = queries[piece.queries].view(of), above[piece.queries].view(of)
            probabilities = next(kept) if _keeps(piece) else _probabilities(block, near_keys, piece, plan.reach)
            near_grad_values.add_(torch.bmm(probabilities.transpose(1, 2), above_block))
            grad_scores = torch.bmm(above_block, near_values.transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_scores, probabilities, -1, grad_scores.dtype)
            torch.bmm(grad_scores, near_keys, out=grad_queries[piece.queries].view(of))
            near_grad_keys.add_(torch.bmm(grad_scores.transpose(1, 2), block))
        if cos is None:
            grad_queries.mul_(scale)
        else:
            _rotate_back_(grad_queries, cos * scale, sin * scale, plan.queries // shape[1])
            _rotate_back_(grad_keys, cos, sin, plan.keys // key_shape[1])
        grad_key, grad_value = (
            grad.index_select(0, plan.key_slots).view(key_shape) for grad in (grad_keys, grad_values)
        )
        return grad_queries.index_select(0, plan.query_slots).view(shape), grad_key, grad_value, None, None, None, None


def _keeps(piece: _Piece) -> bool:
    return piece.stop - piece.first <= _KEPT_KEYS


def _gathered(row: Tensor, slots: Tensor) -> Tensor:
    """``[N, heads, D]`` into slots ``[slots, D]``."""
    return row.reshape(-1, row.shape[-1]).index_select(0, slots)


def _by_bucket(slots: Tensor, plan: Plan) -> list[Tensor]:
    """Views ``[S * K, length, D]`` of key slots, for each bucket."""
    parts = slots.split([count * length for count, length in plan.buckets])
    return [part.view(*bucket, slots.shape[1]) for part, bucket in zip(parts, plan.buckets, strict=True)]


def _near(buckets: list[Tensor], piece: _Piece) -> Tensor:
    """What the piece's rows can reach, ``[B, keys, D]``."""
    return buckets[piece.bucket][piece.matrices, piece.first : piece.stop]


def _probabilities(block: Tensor, near_keys: Tensor, piece: _Piece, reach: int | None) -> Tensor:
    """``[B, G * rows, keys]``"""
    scores = torch.bmm(block, near_keys.transpose(1, 2))
    rows, reached = piece.stop - piece.start, piece.stop - piece.first
    by_row = scores.view(-1, rows, reached)
    far = scores.new_full((rows, rows), -torch.inf).triu_(1)
    by_row[..., reached - rows :].add_(far)
    if reach is not None and reached > reach:
        before = torch.ones(rows, reached, dtype=torch.bool, device=scores.device)
        by_row.masked_fill_(before.tril_(reached - rows - reach), -torch.inf)
    return torch.softmax(scores, -1)


def _rotate_(slots: Tensor, cos: Tensor, sin: Tensor, tokens: Tensor) -> None:
    """(x1 c1 - x2 s1, x2 c2 + x1 s2) of the halves of every head, as transformers' ``apply_rotary_pos_emb``."""
    cos, sin, plain, half = cos.index_select(0, tokens), sin.index_select(0, tokens), slots.clone(), slots.shape[1] // 2
    slots.mul_(cos)
    slots[:, :half].addcmul_(plain[:, half:], sin[:, :half], value=-1)
    slots[:, half:].addcmul_(plain[:, :half], sin[:, half:])


def _rotate_back_(slots: Tensor, cos: Tensor, sin: Tensor, tokens: Tensor) -> None:
    """The transpose of ``_rotate_``: (g1 c1 + g2 s2, g2 c2 - g1 s1)."""
    cos, sin, plain, half = cos.index_select(0, tokens), sin.index_select(0, tokens), slots.clone(), slots.shape[1] // 2
    slots.mul_(cos)
    slots[:, :half].addcmul_(plain[:, half:], sin[:, half:])
    slots[:, half:].addcmul_(plain[:, :half], sin[:, :half], value=-1)
