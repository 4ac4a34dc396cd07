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

from rlep.core.types import Int64Array
from rlep.engines.torch_private import softmax_backward_

_BLOCK = 32
"""Rows of queries that are attended together."""

_SHORTEST_SHARE = 0.5
"""Sequences shorter than this share of their bucket's longest start the next bucket; keys are padded within a bucket."""

_PIECE_BYTES = 2**20
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
class AttentionPlan:
    """Where the heads of a row's tokens go.

    A row is ``[N, H + 2 K, D]``: a token's query, key and value heads. They move into slots of D numbers each: queries
    piece after piece ``[B, G, rows]``, then keys and after them values by ``[sequence, head, length]``.
    """

    pieces: tuple[_Piece, ...]
    sources: Tensor
    """(token, head) of every slot, numbered as in the row; pads repeat their sequence's last token."""
    places: Tensor
    """The slot of every (token, head) of the row, ``[N * (H + 2 K)]``."""
    queries: Tensor
    """(token, head) of every query slot, numbered as in ``[N, H]``."""
    query_places: Tensor
    """The slot of every (token, query head), ``[N * H]``."""
    pads: Tensor
    """Query slots without a token of their own."""
    tokens: Tensor
    """The token of every query and key slot: what rotates it."""
    buckets: tuple[tuple[int, int], ...]
    """Neighbouring sequences whose keys are padded to one length: how many matrices (S * K), and the length."""
    heads: tuple[int, int]
    """H and K."""
    reach: int | None
    """How many tokens a token sees, itself included; None is all before it."""
    later: Tensor
    """``[rows, rows]`` of the largest piece: minus infinity above the diagonal, else 0."""


def plan_of(lengths: Int64Array, heads: int, key_heads: int, reach: int | None, device: torch.device) -> AttentionPlan:
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
    query, key = np.concatenate(queries), np.concatenate(keys)
    query_places, pads = _inverse(query, np.concatenate(real))
    key_places, _ = _inverse(key, np.concatenate(real_keys))
    by_token = [taken + key_places.reshape(-1, key_heads), taken + len(key) + key_places.reshape(-1, key_heads)]
    arrays = {
        "sources": _sources(query, key, heads, key_heads),
        "places": np.concatenate([query_places.reshape(-1, heads), *by_token], axis=1).reshape(-1),
        "queries": query,
        "query_places": query_places,
        "pads": pads,
        "tokens": np.concatenate([query // heads, key // key_heads]),
    }
    rows_of = max(piece.stop - piece.start for piece in pieces)
    return AttentionPlan(
        tuple(pieces),
        **{name: torch.from_numpy(array).to(device) for name, array in arrays.items()},
        buckets=tuple(buckets),
        heads=(heads, key_heads),
        reach=reach,
        later=torch.full((rows_of, rows_of), -torch.inf, device=device).triu_(1),
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


def _sources(queries: Int64Array, keys: Int64Array, heads: int, key_heads: int) -> Int64Array:
    """Queries numbered as in ``[N, H]``, keys as in ``[N, K]``, and values as keys, all numbered as in ``[N, H + 2 K]``."""
    width = heads + 2 * key_heads
    key = keys // key_heads * width + heads + keys % key_heads
    return np.concatenate([queries // heads * width + queries % heads, key, key + key_heads])


def _inverse(indices: Int64Array, real: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Int64Array, Int64Array]:
    """Where each number stands among the real ``indices``, and where the others stand."""
    slots = np.empty(int(real.sum()), dtype=np.int64)
    slots[indices[real]] = np.flatnonzero(real)
    return slots, np.flatnonzero(~real)


def causal_attention(row: Tensor, rotations: tuple[Tensor, Tensor] | None, plan: AttentionPlan, scale: float) -> Tensor:
    """Causal attention within each sequence.

    Args:
        row: query, key and value heads ``[N, H + 2 K, D]``.
        rotations: what ``rotations_of`` gives, of the same plan and scale; None if queries and keys need no rotation.
        plan: of the row.
        scale: of the scores.

    Returns:
        ``[N, H, D]``
    """
    result: Tensor = _Causal.apply(row, rotations, plan, scale)
    return result


def rotations_of(cos: Tensor, sin: Tensor, plan: AttentionPlan, scale: float) -> tuple[Tensor, Tensor]:
    """Complex numbers ``[query and key slots, D / 2]`` that rotate a slot's pairs of neighbouring numbers, or gradients back.

    Args:
        cos: ``[N, D / 2]``, of each pair of a head, at each token (rotary embedding, arXiv 2104.09864).
        sin: ``[N, D / 2]``
        plan: of the row.
        scale: of the scores: queries take it with them.
    """
    rotations = torch.complex(cos, sin).index_select(0, plan.tokens)
    rotations[: len(plan.queries)] *= scale
    return rotations, rotations.conj().resolve_conj()


class _Causal(torch.autograd.Function):
    """dS = P (dP - sum(dP P)) with P = softmax(S), S = scale · Q Kᵀ, dP = dO Vᵀ."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        row, rotations, plan, scale = given
        slots = _heads(row).index_select(0, plan.sources)
        _rotate_(slots, None if rotations is None else rotations[0], plan, scale)
        queries, *by_bucket = _parts(slots, plan)
        attended, kept = torch.empty_like(queries), []
        for piece in plan.pieces:
            near_keys, near_values = (_near(tensors, piece) for tensors in by_bucket)
            block = queries[piece.queries].view(len(near_keys), -1, row.shape[2])
            probabilities = _probabilities(block, near_keys, piece, plan)
            torch.bmm(probabilities, near_values, out=attended[piece.queries].view_as(block))
            if ctx.needs_input_grad[0] and _keeps(piece):
                kept.append(probabilities)
        ctx.plan, ctx.scale, ctx.shape = plan, scale, row.shape
        ctx.save_for_backward(slots, None if rotations is None else rotations[1], *kept)
        return attended.index_select(0, plan.query_places).view(len(row), plan.heads[0], -1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        slots, rotations, *kept = ctx.saved_tensors
        plan, kept = ctx.plan, iter(kept)
        above = _heads(upstream).index_select(0, plan.queries).index_fill_(0, plan.pads, 0.0)
        grads = torch.empty_like(slots)
        grads[len(plan.queries) :].zero_()
        queries, *by_bucket = _parts(slots, plan)
        grad_queries, *grads_by_bucket = _parts(grads, plan)
        for piece in plan.pieces:
            near_keys, near_values = (_near(tensors, piece) for tensors in by_bucket)
            near_grad_keys, near_grad_values = (_near(tensors, piece) for tensors in grads_by_bucket)
            of = (len(near_keys), -1, slots.shape[1])
            block, above_block = queries[piece.queries].view(of), above[piece.queries].view(of)
            probabilities = next(kept) if _keeps(piece) else _probabilities(block, near_keys, piece, plan)
            near_grad_values.add_(torch.bmm(probabilities.transpose(1, 2), above_block))
            grad_scores = torch.bmm(above_block, near_values.transpose(1, 2))
            softmax_backward_(grad_scores, probabilities)
            torch.bmm(grad_scores, near_keys, out=grad_queries[piece.queries].view(of))
            near_grad_keys.add_(torch.bmm(grad_scores.transpose(1, 2), block))
        _rotate_(grads, rotations, plan, ctx.scale)
        return grads.index_select(0, plan.places).view(ctx.shape), None, None, None


def _keeps(piece: _Piece) -> bool:
    return piece.stop - piece.first <= _KEPT_KEYS


def _heads(row: Tensor) -> Tensor:
    return row.reshape(-1, row.shape[-1])


def _rotate_(slots: Tensor, rotations: Tensor | None, plan: AttentionPlan, scale: float) -> None:
    """Scale queries, and rotate queries and keys if there are ``rotations``, which hold the scale."""
    if rotations is None:
        slots[: len(plan.queries)].mul_(scale)
    else:
        torch.view_as_complex(slots[: len(rotations)].unflatten(1, (-1, 2))).mul_(rotations)


def _parts(slots: Tensor, plan: AttentionPlan) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Views: queries ``[query slots, D]``, keys and values ``[S * K, length, D]`` for each bucket."""
    sizes = [count * length for count, length in plan.buckets]
    queries, *near = slots.split([len(plan.queries), *sizes, *sizes])
    shaped = [part.view(*bucket, slots.shape[1]) for part, bucket in zip(near, plan.buckets * 2, strict=True)]
    return queries, shaped[: len(sizes)], shaped[len(sizes) :]


def _near(buckets: list[Tensor], piece: _Piece) -> Tensor:
    """What the piece's rows can reach, ``[B, keys, D]``."""
    return buckets[piece.bucket][piece.matrices, piece.first : piece.stop]


def _probabilities(block: Tensor, near_keys: Tensor, piece: _Piece, plan: AttentionPlan) -> Tensor:
    """``[B, G * rows, keys]``"""
    scores = torch.bmm(block, near_keys.transpose(1, 2))
    rows, reached = piece.stop - piece.start, piece.stop - piece.first
    by_row = scores.view(-1, rows, reached)
    by_row[..., reached - rows :].add_(plan.later[:rows, :rows])
    if plan.reach is not None and reached > plan.reach:
        before = torch.ones(rows, reached, dtype=torch.bool, device=scores.device)
        by_row.masked_fill_(before.tril_(reached - rows - plan.reach), -torch.inf)
    return torch.softmax(scores, -1, out=scores)
