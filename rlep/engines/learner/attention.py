"""Attention over packed rows: many sequences end to end in one row, no padding token in the model, no dense mask.

transformers calls ``packed_attention`` through its ``AttentionInterface``. Because no mask function is registered under
the same name, transformers builds no mask at all: a ``Layout``, handed through the model's keyword arguments, says which
tokens belong together. On a GPU in half precision torch's variable-length flash attention runs, everywhere else ``causal``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from rlep.core.errors import ModelError
from rlep.core.types import Int64Array
from rlep.engines.cpu.causal import AttentionPlan, causal_attention, plan_of, turns_of

PACKED_ATTENTION = "rlep_packed"
"""The name under which transformers knows ``packed_attention``."""


class _Made:
    """What the first layer works out for all. No dataclass and no dict: of those FSDP hands each layer a copy."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int, int | None], AttentionPlan] = {}
        self.turns: dict[tuple[AttentionPlan, float], tuple[Tensor, Tensor]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How one row of N tokens is cut into sequences, longest first."""

    positions: Tensor
    """Position of every token within its sequence, ``[1, N]``."""
    boundaries: Tensor
    """Where sequences start and the row ends, int32 ``[S + 1]``."""
    longest: int
    lengths: Int64Array
    """Of the sequences, ``[S]``, on the host."""
    _made: _Made = field(default_factory=_Made)

    def reach(self, window: object) -> int | None:
        """How many tokens a token sees through a sliding ``window``; None if the window, if it is one, cuts off nothing."""
        return window if isinstance(window, int) and window < self.longest else None

    def plan(self, heads: int, key_heads: int, window: object) -> AttentionPlan:
        """How heads of queries and keys are laid out for the attention."""
        wanted = (heads, key_heads, self.reach(window))
        plans = self._made.plans
        if wanted not in plans:
            plans[wanted] = plan_of(self.lengths, *wanted, self.positions.device)
        return plans[wanted]

    def turns(self, plan: AttentionPlan, rotation: tuple[Tensor, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """``turns_of`` the cosines and sines ``[N, D / 2]``, which are the same in all layers."""
        turns = self._made.turns
        if (plan, scale) not in turns:
            turns[plan, scale] = turns_of(*rotation, plan, scale)
        return turns[plan, scale]


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
    return _causal(row, layout, scale, window), None


def _has_flash(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


@torch.compiler.disable
def _causal(row: tuple[Tensor, ...], layout: Layout, scale: float, window: object) -> Tensor:
    """Not compiled: every row's plan would be another graph."""
    plan = layout.plan(row[0].shape[1], row[1].shape[1], window)
    return causal_attention(torch.cat(row, 1), None, plan, scale).unsqueeze(0)


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
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if not isinstance(attended, Tensor):
        raise ModelError("variable-length attention returned auxiliary outputs nobody asked for")
    return attended.unsqueeze(0)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
