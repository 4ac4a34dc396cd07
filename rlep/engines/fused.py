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

from rlep.engines.attention import Layout, attended
from rlep.engines.gated import compute_gated_in_blocks

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
    result: Tensor = _RootMeanSquare.apply(x.reshape(-1, x.shape[-1]), module.weight, module.variance_epsilon)
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
    """Rotates queries and keys while it lays them out for the attention; ``hidden_states [1, N, d]``."""
    projections = (module.q_proj, module.k_proj, module.v_proj)
    query, key, value = (project(hidden_states)[0].unflatten(1, (-1, module.head_dim)) for project in projections)
    if isinstance(module, Qwen3Attention):
        query, key = module.q_norm(query), module.k_norm(key)
    window = module.config.sliding_window if isinstance(module, MistralAttention) else None
    window = getattr(module, "sliding_window", window)
    reach = window if isinstance(window, int) and window < layout.longest else None
    cos, sin = position_embeddings  # [1, N, D]
    result = attended((query, key, value), (cos[0], sin[0]), layout, module.scaling, reach)  # [N, H, D]
    return module.o_proj(result.flatten(1).unsqueeze(0)), None
