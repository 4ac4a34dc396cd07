"""Attention over packed rows: many sequences end to end in one row, no padding token in the model, no mask.

transformers calls ``packed_attention`` through its ``AttentionInterface``. Because no mask function is registered under
the same name, transformers builds no mask at all: a ``Layout``, handed through the model's keyword arguments, says which
tokens belong together. On a GPU in half precision torch's variable-length flash attention runs; everywhere else torch's
``scaled_dot_product_attention``, sequence by sequence, which on a CPU is no slower than a padded batch of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rlep.algorithms.packing import spans
from rlep.core.errors import ModelError
from rlep.core.types import Int64Array

PACKED_ATTENTION = "rlep_packed"
"""The name under which transformers knows ``packed_attention``."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Division of one row of N tokens into sequences, longest first."""

    positions: Tensor
    """Position of every token within its sequence, ``[1, N]``."""
    boundaries: Tensor
    """Starts of the sequences and end of the row, int32 ``[S + 1]``."""
    longest: int
    lengths: Int64Array
    """Of the sequences, ``[S]``, on the host."""

    def reach(self, window: object) -> int | None:
        """Return the tokens that a token sees through a sliding ``window``; None if no window cuts off anything."""
        return window if isinstance(window, int) and window < self.longest else None


def layout_of(lengths: Int64Array, device: torch.device) -> Layout:
    """The layout of a row of sequences with these ``lengths`` ``[S]``, which must not increase.

    Raises:
        ValueError: the lengths increase somewhere, or one is not positive.
    """
    if len(lengths) == 0 or np.any(np.diff(lengths) > 0) or lengths[-1] < 1:
        raise ValueError("a packed row needs at least one sequence, longest first, none empty")
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return Layout(
        positions=torch.from_numpy(spans(np.zeros_like(lengths), lengths)[None]).to(device),
        boundaries=torch.from_numpy(bounds.astype(np.int32)).to(device),
        longest=int(lengths[0]),
        lengths=lengths,
    )


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
    scale = float(scaling) if isinstance(scaling, int | float) else query.shape[3] ** -0.5
    row = tuple(tensor[0].transpose(0, 1) for tensor in (query, key, value))  # each [N, heads, D]
    if _has_flash(query):
        return _flash(row, layout, scale, layout.reach(window)), None
    return _each_alone(row, layout, scale, layout.reach(window)), None


def _has_flash(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


@torch.compiler.disable
def _each_alone(row: tuple[Tensor, ...], layout: Layout, scale: float, reach: int | None) -> Tensor:
    """Not compiled: every row has other lengths."""
    sharing = row[0].shape[1] // row[1].shape[1]
    if sharing > 1:  # of torch's kernels for float32 on a GPU only the one that holds all scores takes shared key heads
        row = (row[0], *(tensor.repeat_interleave(sharing, 1) for tensor in row[1:]))
    attended = []
    for parts in zip(*(tensor.split(layout.lengths.tolist()) for tensor in row), strict=True):
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in parts)  # each [1, heads, T, D]
        length = query.shape[2]
        mask = None
        if reach is not None and reach < length:
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril_().triu_(1 - reach)
        result = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)
        attended.append(result[0].transpose(0, 1))
    return torch.cat(attended).unsqueeze(0)


def _flash(row: tuple[Tensor, ...], layout: Layout, scale: float, reach: int | None) -> Tensor:
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
        enable_gqa=True,
    )
    if not isinstance(attended, Tensor):
        raise ModelError("variable-length attention returned auxiliary outputs nobody asked for")
    return attended.unsqueeze(0)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
