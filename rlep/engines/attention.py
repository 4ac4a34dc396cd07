"""Attention over packed rows: many sequences end to end in one row, no padding token in the model, no dense mask.

transformers calls ``packed_attention`` through its ``AttentionInterface``. Because no mask function is registered under
the same name, transformers builds no mask at all: a ``Layout``, handed through the model's keyword arguments, says which
tokens belong together. On a GPU in half precision torch's variable-length flash attention runs; everywhere else sequences
of similar length are attended together by causal SDPA, in buckets that are padded only inside the attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rlep.errors import ModelError
from rlep.types import Int64Array

PACKED_ATTENTION = "rlep_packed"
"""The name under which transformers knows ``packed_attention``."""

_SHORTEST_SHARE = 0.9
"""Sequences shorter than this share of their bucket's longest start the next bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How one row of N tokens is cut into sequences, longest first."""

    positions: Tensor
    """Position of every token within its sequence, ``[1, N]``."""
    boundaries: Tensor
    """Where sequences start and the row ends, int32 ``[S + 1]``."""
    longest: int
    buckets: tuple[tuple[int, int], ...]
    """Neighbouring sequences that are attended together: how many, and the length all are padded to."""
    slots: Tensor
    """The row's token in every slot of every bucket, ``[sum(count * length)]``; pads repeat their sequence's last token."""
    filled: Tensor
    """The slot of every token of the row, ``[N]``."""


def spans(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """The concatenation of ``arange(start, start + length)`` over all pairs, ``[sum(lengths)]``."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    result: Int64Array = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return result


def layout_of(lengths: Int64Array, device: torch.device) -> Layout:
    """The layout of a row of sequences with these ``lengths`` ``[S]``, which must not increase.

    Raises:
        ValueError: the lengths increase somewhere, or one is not positive.
    """
    if len(lengths) == 0 or np.any(np.diff(lengths) > 0) or lengths[-1] < 1:
        raise ValueError("a packed row needs at least one sequence, longest first, none empty")
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    cuts = [0]
    for index, length in enumerate(lengths):
        if length < _SHORTEST_SHARE * lengths[cuts[-1]]:
            cuts.append(index)
    buckets = tuple((b - a, int(lengths[a])) for a, b in pairwise([*cuts, len(lengths)]))
    padded = np.repeat(*np.array(buckets).T[::-1])  # [S]
    within = spans(np.zeros_like(padded), padded)  # position of every slot within its sequence
    first = np.repeat(bounds[:-1], padded)
    arrays = {
        "positions": spans(np.zeros_like(lengths), lengths)[None],
        "boundaries": bounds.astype(np.int32),
        "slots": first + np.minimum(within, np.repeat(lengths - 1, padded)),
        "filled": spans(np.cumsum(padded) - padded, lengths),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return Layout(longest=int(lengths[0]), buckets=buckets, **tensors)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: object,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of the row.

    Args:
        module: the attention module; unused, part of transformers' interface.
        query: ``[1, H, N, D]``.
        key: ``[1, K, N, D]``, K key heads, each shared by H / K query heads.
        value: ``[1, K, N, D]``.
        attention_mask: always None: the layout says it all.
        settings: ``layout``, ``scaling`` and ``sliding_window`` are used; ``softcap`` and ``s_aux`` must be unset.

    Returns:
        The attended values ``[1, N, H, D]``, and None in place of the attention weights.

    Raises:
        ModelError: the model wants an attention variant that is not computed here.
    """
    layout = settings["layout"]
    if not isinstance(layout, Layout) or attention_mask is not None:
        raise ModelError("packed attention needs a layout and no mask")
    for variant in ("softcap", "s_aux"):
        if settings.get(variant) is not None:
            raise ModelError(f"models with {variant!r} in their attention are not supported by the learner")
    scaling, window = settings.get("scaling"), settings.get("sliding_window")
    scale = float(scaling) if isinstance(scaling, int | float) else None
    reach = window if isinstance(window, int) and window < layout.longest else None
    row = tuple(tensor[0].transpose(0, 1) for tensor in (query, key, value))  # each [N, heads, D]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash(row, layout, scale, reach), None
    slotted = (_Spread.apply(tensor, layout) for tensor in row)
    # Split, not sliced: the gradients of the parts are joined once, instead of each being added to a row of zeros.
    sizes = [count * length for count, length in layout.buckets]
    split = zip(*(tensor.split(sizes) for tensor in slotted), strict=True)
    parts = [_bucketed(part, bucket, scale, reach) for part, bucket in zip(split, layout.buckets, strict=True)]
    attended: Tensor = _Collect.apply(torch.cat(parts), layout)
    return attended.unsqueeze(0), None


def _bucketed(part: tuple[Tensor, ...], bucket: tuple[int, int], scale: float | None, reach: int | None) -> Tensor:
    """Causal SDPA over one bucket: ``[count * length, H, D]``. A pad follows every real token, so none attends to it."""
    query, key, value = (x.unflatten(0, bucket).transpose(1, 2) for x in part)
    mask, length = None, bucket[1]
    if reach is not None and length > reach:
        ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
        mask = ones.tril().triu(1 - reach)  # a token sees itself and the reach - 1 before it
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2).flatten(0, 1)


class _Spread(torch.autograd.Function):
    """Tokens ``[N, H, D]`` into slots. Nothing that is kept depends on a pad, so pads bring no gradient."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, layout: Layout) -> Tensor:
        ctx.filled = layout.filled
        return tokens.index_select(0, layout.slots)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return upstream.index_select(0, ctx.filled), None


class _Collect(torch.autograd.Function):
    """Tokens ``[N, H, D]`` out of slots."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, layout: Layout) -> Tensor:
        ctx.filled, ctx.count = layout.filled, len(slots)
        return slots.index_select(0, layout.filled)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        slots = upstream.new_zeros(ctx.count, *upstream.shape[1:])
        return slots.index_copy_(0, ctx.filled, upstream), None


def _flash(row: tuple[Tensor, ...], layout: Layout, scale: float | None, reach: int | None) -> Tensor:
    # Imported here: the module loads GPU kernels that a machine without one need not have.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = row
    attended = varlen_attn(
        query,
        key,
        value,
        layout.boundaries,
        layout.boundaries,
        layout.longest,
        layout.longest,
        scale=scale,
        window_size=(-1, 0) if reach is None else (reach - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if not isinstance(attended, Tensor):
        raise ModelError("variable-length attention returned auxiliary outputs nobody asked for")
    return attended.unsqueeze(0)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
