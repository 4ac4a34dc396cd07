"""Names of torch that rlep uses and torch does not document; ``tests/contract/test_private_api.py`` finds each in its sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch import nn


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
