"""The memory of one generator and of a weight update: bytes of weights and KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from rlep.config.schema import Config
from rlep.plan.model_shape import ModelShape, width_of

GIB = 2**30
PROCESS_BYTES = 2 * GIB
"""GPU memory of a process beside its tensors, asleep or not: CUDA context, NCCL's buffers, graphs, fragments. Rough."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, unless a name says otherwise."""

    parameters: int
    """Weights in all (a number)."""
    kv_token: int
    """KV cache of one token."""
    kv_sequence: int
    """KV cache of one sequence of greatest length."""
    kv_cache: int
    """KV cache of one generator, 0 where weights alone fill the memory."""
    kv_sequences: int
    """Sequences of greatest length that fit into it (a number)."""
    weight_update: int
    """One weight update to the generators."""


def plan_memory(config: Config, shape: ModelShape, gpu_bytes: int) -> MemoryPlan:
    """Memory of one generator, on GPUs of ``gpu_bytes``."""
    generator = config.generator
    served = width_of(generator.compute_dtype)
    if generator.gpus:
        memory = (
            int(gpu_bytes * generator.memory_utilization) - PROCESS_BYTES - _largest_step_bytes(config, shape, served)
        )
        cache = max(0, memory * generator.tensor_parallel - shape.parameters * served)
    else:
        cache = int(generator.kv_cache_gib * GIB)
    sequence = shape.kv_bytes(served) * config.context
    return MemoryPlan(
        parameters=shape.parameters,
        kv_token=shape.kv_bytes(served),
        kv_sequence=sequence,
        kv_cache=cache,
        kv_sequences=cache // sequence,
        weight_update=shape.parameters * served,
    )


def _largest_step_bytes(config: Config, shape: ModelShape, width: int) -> int:
    """Estimate the bytes that vLLM sets aside on one GPU for its largest step.

    The larger of the feed-forward network over all its tokens, and the logits of all its sequences in float32 with what is
    sampled from, four times in all.
    """
    generator = config.generator
    tokens = max(generator.max_batched_tokens, config.context)
    network = tokens * (3 * shape.intermediate // generator.tensor_parallel + 4 * shape.hidden) * width
    return max(network, 16 * generator.max_sequences * shape.vocabulary)
