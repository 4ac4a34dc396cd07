"""What the CPU acceleration uses of vLLM 0.32 that vLLM does not document. Imports vLLM when a name is asked for.

``tests/contract/test_private_api.py`` finds each name in the installed sources.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VLLM = {
    "vllm.v1.core.kv_cache_manager": ("KVCacheBlocks", "KVCacheManager"),
    "vllm.v1.core.sched.output": ("SchedulerOutput",),
    "vllm.v1.core.sched.scheduler": ("Scheduler",),
    "vllm.v1.engine": ("EngineCoreOutput", "EngineCoreOutputs"),
    "vllm.v1.outputs": ("LogprobsLists", "ModelRunnerOutput"),
    "vllm.v1.request": ("Request", "RequestStatus"),
    "vllm.v1.sample.ops.topk_topp_sampler": ("TopKTopPSampler", "apply_top_k_top_p"),
}
"""Module -> the names that this module hands on."""


def __getattr__(name: str) -> Any:
    for module, names in VLLM.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def fused_gumbel_argmax(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Tokens ``[B]`` sampled from float32 logits ``[B, V]`` with one random number ``[B]`` a row, by vLLM's CPU kernel."""
    import torch

    tokens: torch.Tensor = torch.ops._C.fused_gumbel_argmax(logits, seeds)
    return tokens


def replace_cpu_sampler(model_runner: Any, sampler: Any) -> None:
    """Have a model runner that samples by vLLM's CPU kernel sample by ``sampler``; leave others as they are."""
    sampling = getattr(model_runner.sampler, "topk_topp_sampler", None)  # vLLM's runner for GPUs has no such part
    if sampling is not None and sampling.forward == sampling.forward_cpu:
        model_runner.sampler.topk_topp_sampler = sampler
