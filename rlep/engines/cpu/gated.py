"""The gated feed-forward network of Llama, Mistral and Qwen on a CPU: block by block, so that it is computed in the cache.

``down(silu(gate(x)) * up(x))`` has the widest activations of a layer. Operation by operation each of them goes through
memory about twenty times in an update; here the two that the backward pass needs are written once and read once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from rlep.engines.cpu.products import product

_BLOCK_BYTES = 512 * 2**10
"""Of one activation of a block; about four of this size are in use at once, beside the weights."""


def compute_gated_in_blocks(model: PreTrainedModel) -> None:
    """Replace the forward of every such network; parameters and their names stay."""
    for module in model.modules():
        projections = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        plain = all(isinstance(linear, nn.Linear) and linear.bias is None for linear in projections)
        if plain and isinstance(getattr(module, "act_fn", None), nn.SiLU | SiLUActivation):
            module.forward = partial(_forward, module)


def _forward(module: Any, x: Tensor) -> Tensor:
    weights = (module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight)
    result: Tensor = _Gated.apply(x.flatten(0, -2), *weights)
    return result.view_as(x)


class _Gated(torch.autograd.Function):
    """x ``[N, d]``, gate and up ``[i, d]``, down ``[d, i]`` to ``[N, d]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        result, kept = torch.empty_like(x), []
        for rows in _blocks(x, len(gate)):
            gated, raised = product(x[rows], gate), product(x[rows], up)
            result[rows] = product(nn.functional.silu(gated).mul_(raised), down)
            kept += [gated, raised]
        ctx.save_for_backward(x, gate, up, down, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, gate, up, down, *kept = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        # Transposed, in which shape the library multiplies faster.
        grad_gate, grad_up = (
            torch.zeros_like(weight.t(), memory_format=torch.contiguous_format) for weight in (gate, up)
        )
        grad_down = torch.zeros_like(down)
        for rows, gated, raised in zip(_blocks(x, len(gate)), kept[::2], kept[1::2], strict=True):
            active, above = nn.functional.silu(gated), upstream[rows]
            grad_product = product(above, down.t())
            grad_down.addmm_(above.t(), active * raised)
            grad_raised = active.mul_(grad_product)
            grad_gated = torch.ops.aten.silu_backward(grad_product.mul_(raised), gated)
            grad_up.addmm_(x[rows].t(), grad_raised)
            grad_gate.addmm_(x[rows].t(), grad_gated)
            torch.add(product(grad_gated, gate.t()), product(grad_raised, up.t()), out=grad_x[rows])
        return grad_x, grad_gate.t(), grad_up.t(), grad_down


def _blocks(x: Tensor, width: int) -> list[slice]:
    size = max(1, _BLOCK_BYTES // (x.element_size() * width))
    return [slice(start, start + size) for start in range(0, len(x), size)]
