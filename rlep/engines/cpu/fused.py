"""What the layers of Llama, Mistral, Qwen2 and Qwen3 compute beside matrix products, in fewer passes over memory on a CPU.

The modules, their parameters and their names stay; only their forward functions are replaced. Models of other
architectures keep transformers' own modules.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralAttention, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm

from rlep.engines.cpu.causal import AttentionPlan, causal_attention, plan_of, rotations_of
from rlep.engines.cpu.gated import compute_gated_in_blocks
from rlep.engines.cpu.products import linear
from rlep.engines.learner.attention import Layout

_NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
_ATTENTIONS = (LlamaAttention, MistralAttention, Qwen2Attention, Qwen3Attention)


def fuse(model: PreTrainedModel) -> None:
    """Replace the forward functions of every module that is known."""
    compute_gated_in_blocks(model)
    for module in model.modules():
        if type(module) in _NORMS:
            module.forward = partial(_norm, module)
        elif type(module) in _ATTENTIONS:
            module.forward = partial(_attention, module)


def _norm(module: Any, x: Tensor) -> Tensor:
    return _normalised(x, module.weight, module.variance_epsilon)


def _normalised(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    result: Tensor = _RootMeanSquare.apply(x.reshape(-1, x.shape[-1]), weight, epsilon)
    return result.view(x.shape)


class _RootMeanSquare(torch.autograd.Function):
    """y = w x̂ with x̂ = r x, r = (mean(x²) + ε)^-½, x ``[N, d]``; dx = r (w dy - x̂ mean(w dy x̂))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=1, keepdim=True).square_().div_(x.shape[1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, inverse = ctx.saved_tensors
        scaled = x * inverse
        product = upstream * scaled
        mean = torch.mv(product, weight).div_(-x.shape[1]).unsqueeze_(1)
        grad_x = (upstream * weight).addcmul_(scaled, mean).mul_(inverse)
        return grad_x, product.sum(0), None


def _attention(
    module: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    layout: Layout,
    **_: object,
) -> tuple[Tensor, None]:
    """Query, key and value in one product, rotated as complex numbers; ``hidden_states [1, N, d]``.

    The two halves of a query's or key's head, of which transformers makes pairs, are interleaved, so that pairs are neighbours.
    Scores do not change by that.
    """
    projections, size = (module.q_proj, module.k_proj, module.v_proj), module.head_dim
    weight, bias = (_stacked([getattr(one, name) for one in projections], size) for name in ("weight", "bias"))
    row = linear(hidden_states[0], weight, bias).unflatten(1, (-1, size))  # [N, H + 2 K, D]
    key_heads = module.v_proj.out_features // size
    heads = row.shape[1] - 2 * key_heads
    if isinstance(module, Qwen3Attention):
        query, key, value = row.split([heads, key_heads, key_heads], 1)
        row = torch.cat([_head_norm(module.q_norm, query), _head_norm(module.k_norm, key), value], 1)
    window = module.config.sliding_window if isinstance(module, MistralAttention) else None
    plan = _plan(layout, heads, key_heads, layout.reach(getattr(module, "sliding_window", window)))
    cos, sin = (part[0, :, : size // 2] for part in position_embeddings)  # [1, N, D], both halves the same
    rotations = _rotations(layout, cos, sin, plan, module.scaling)
    attended = causal_attention(row, rotations, plan, module.scaling)  # [N, H, D]
    return linear(attended.flatten(1), module.o_proj.weight, module.o_proj.bias).unsqueeze(0), None


def _plan(layout: Layout, heads: int, key_heads: int, reach: int | None) -> AttentionPlan:
    """The same in all layers that look equally far back."""
    known, key = layout.memo.values, (heads, key_heads, reach)
    if key not in known:
        known[key] = plan_of(layout.lengths, heads, key_heads, reach, layout.positions.device)
    plan: AttentionPlan = known[key]
    return plan


def _rotations(layout: Layout, cos: Tensor, sin: Tensor, plan: AttentionPlan, scale: float) -> tuple[Tensor, Tensor]:
    """``rotations_of``, which are the same in all layers of a plan."""
    known, key = layout.memo.values, (plan, scale)
    if key not in known:
        known[key] = rotations_of(cos, sin, plan, scale)
    rotations: tuple[Tensor, Tensor] = known[key]
    return rotations


def _stacked(parts: list[Tensor | None], size: int) -> Tensor | None:
    """Weights or biases of query, key and value projection, heads of ``size`` rows, one after another."""
    if parts[0] is None or parts[1] is None or parts[2] is None:
        return None
    return torch.cat([_interleaved(parts[0], size), _interleaved(parts[1], size), parts[2]])


def _interleaved(rows: Tensor, size: int) -> Tensor:
    """Of each ``size`` rows 0, 1, ... the order 0, size / 2, 1, size / 2 + 1, ..."""
    return rows.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def _head_norm(module: Any, heads: Tensor) -> Tensor:
    """Of interleaved heads ``[N, H, D]``."""
    return _normalised(heads, _interleaved(module.weight, heads.shape[2]), module.variance_epsilon)
