"""Undocumented parts of vLLM 0.32 that rlep uses, one name a function: a new vLLM is met here.

``tests/contract/test_private_api.py`` finds each name in the installed sources. This module imports vLLM only when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm import AsyncLLMEngine

SHARED_MEMORY_NAMES = ("psm_*", "vllm_dist_*")
"""Patterns of the files in ``/dev/shm`` by which tensor-parallel workers talk; the first is Python's own."""
SOCKET_NAME_BYTES = 37
"""A slash and the UUID that vLLM names a socket by."""


def engine_death() -> tuple[type[Exception], ...]:
    """Errors that calls to an engine raise when one of its processes died."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    return EngineDeadError, EngineGenerateError


def destroy_socket_context(engine: AsyncLLMEngine) -> None:
    """After ``shutdown``, which closes the sockets: end their context and its threads. Blocks."""
    engine.engine_core.resources.ctx.destroy(0)


def in_every_process(value: object) -> dict[str, Any]:
    """Engine arguments by which ``value`` is unpickled first in each process that vLLM starts.

    vLLM calls its ``compute_hash`` for the key of compiled graphs.
    """
    return {"additional_config": value}


def forget_weight_update(worker: Any) -> None:
    """Have a worker accept ``start_weight_update`` although an earlier update did not finish."""
    worker._weight_update_active = False


def pack_cpu_matrix(module: torch.nn.Module) -> None:
    """Make the packed copy that a linear layer multiplies by on a CPU from its present weight, which it keeps."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def kv_copies(module: torch.nn.Module) -> int:
    """Workers that hold the same k and v of a fused q, k, v: several where there are more workers than heads of k."""
    return int(getattr(module, "num_kv_head_replicas", 1))
