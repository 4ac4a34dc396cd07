"""Matrix products of the learner's layers on a CPU through oneDNN.

torch's own ``linear`` takes MKL for fp32, which on the processors that were measured reaches 73-91 % of a large product's
speed on such narrow matrices; oneDNN, which torch carries for its compiler, reaches 89-99 %. Where a build has none, or the
type is another, torch's own is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlep.engines.torch_private import HAS_ONEDNN_LINEAR, onednn_linear


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [N, d] @ weight [o, d]ᵀ + bias [o]``, without a gradient; the weight lies row after row, or column after column."""
    if HAS_ONEDNN_LINEAR and x.dtype == torch.float32 and x.is_cpu:
        return onednn_linear(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``product`` with a gradient."""
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        # The weight's gradient is computed transposed, in which shape the library multiplies faster.
        grad_weight = torch.mm(x.t(), upstream).t()
        return product(upstream, weight.t()), grad_weight, upstream.sum(0) if ctx.biased else None
