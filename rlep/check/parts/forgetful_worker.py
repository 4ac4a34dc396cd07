"""Runs inside vLLM's worker on CPUs, which frees nothing in its sleep: one that forgets there what a GPU's would."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlep.engines.sampler.vllm_worker import WorkerExtension

EVERY_BIT = 0xFF
"""Of each byte: every type of float then has NaNs, every signed integer -1."""

NO_VALUE = 1e4
"""Of the KV cache: no model has it, and attention to it is seen. A NaN would spread from where no token is: vLLM's kernel for
CPUs multiplies those places by 0."""


class ForgetfulWorkerExtension(WorkerExtension):
    """Class that vLLM mixes into a worker whose engine sleeps at level 2."""

    def forget(self) -> None:
        """Overwrite the model's parameters and other tensors, but not its buffers, which vLLM saves; and the KV cache."""
        model = self.model_runner.model
        saved = {buffer.data_ptr() for buffer in model.buffers()}
        for module in model.modules():
            for tensor in (*module.parameters(recurse=False), *vars(module).values()):
                if isinstance(tensor, Tensor) and tensor.data_ptr() not in saved:
                    tensor.untyped_storage().fill_(EVERY_BIT)
            if hasattr(module, "cpu_linear"):  # holds a packed copy of the weight where nobody can reach it
                module.cpu_linear = _without_weight(module.cpu_linear)
        for cache in self.model_runner.kv_caches:
            cache.fill_(NO_VALUE)


def _without_weight(multiply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The product with a matrix of NaNs, in the type and shape of the product."""
    return lambda *given: torch.full_like(multiply(*given), torch.nan)
