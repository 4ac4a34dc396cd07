"""What rlep uses of torch that torch does not document; ``tests/contract/test_private_api.py`` finds each in its sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

HAS_ONEDNN_LINEAR = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this build of torch carries ``onednn_linear``."""


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """float32 ``x [N, d] @ weight [o, d]ᵀ + bias [o]`` on a CPU by oneDNN, without a gradient."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def softmax_backward_(grad: Tensor, probabilities: Tensor) -> None:
    """``P (dP - sum(dP P))`` over the last dimension, written into ``grad`` (dP)."""
    torch.ops.aten._softmax_backward_data.out(grad, probabilities, -1, grad.dtype, grad_input=grad)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters created inside take no memory; buffers stay real, because no checkpoint holds them."""
    register = nn.Module.register_parameter

    def register_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def gloo_group(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """A gloo group beside the process's default one, which need not exist."""
    return dist.ProcessGroupGloo(store, rank, world_size, timeout)
