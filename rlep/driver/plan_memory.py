"""The memory a model needs, from its ``config.json`` alone: bytes of learners, KV cache and weight updates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlep.config.schema import Config
from rlep.core.errors import ModelError

GIB = 2**30
GPU_GIB = 80
"""Memory of one GPU that the KV cache's size is worked out for; the plan does not look at the machine."""
GPU_HEAD_BYTES, CPU_HEAD_BYTES = 3 * 256 * 2**20, (3 * 16 + 256) * 2**20
"""Logits of the output head: three fp32 chunks, and what a CPU keeps of them (see ``engines/learner/head.py``)."""
TRAINING_BYTES = 16
"""Per parameter: fp32 master weight and gradient, 4 each, and Adam's two fp32 moments, 8."""
ASLEEP_BYTES = 2 * GIB
"""GPU memory that a side keeps while it sleeps: CUDA context, buffers of NCCL, graphs. Rough."""
KEPT_BYTES = 4
"""Per parameter: the start-of-step weights that ``update.stream`` keeps."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama and Qwen families: gated MLP, grouped-query attention."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    """Output head and embedding are one matrix."""
    attention_bias: bool
    """The q, k and v projections have a bias."""
    head_norms: bool = False
    """Queries and keys are normalised per head (Qwen3)."""

    @property
    def parameters(self) -> int:
        """Weights in all."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys) * self.attention_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.head_norms
        layer = attention + 3 * self.hidden * self.intermediate + norms
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.layers * layer + self.hidden

    def kv_bytes(self, width: int) -> int:
        """KV cache of one token in bytes, ``width`` bytes a value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    def activation_bytes(self, tokens: int, width: int, *, checkpointing: bool) -> int:
        """Rough: a layer keeps 11 · hidden + 4 · intermediate values a token; with checkpointing all but one keep only hidden.

        This is what autograd saved of transformers' layers in bfloat16, to 2 %; in float32 on a CPU a layer keeps less.
        """
        layer = 11 * self.hidden + 4 * self.intermediate
        kept = self.layers * self.hidden + layer if checkpointing else self.layers * layer
        return tokens * width * kept


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, unless a name says otherwise."""

    parameters: int
    """Weights in all (a number)."""
    learner: int
    """One rank in all: the sum of the four below."""
    learner_state: int
    """Of one rank: its share of master weights, gradients and Adam moments, and of start-of-step weights."""
    learner_copy: int
    """Of one rank: the gathered weights it computes with."""
    learner_reference: int
    """Of one rank: the base model held for the KL; 0 without."""
    learner_activations: int
    """Of one rank, roughly, in one micro-batch."""
    kv_token: int
    """KV cache of one token."""
    kv_sequence: int
    """KV cache of one sequence of greatest length."""
    kv_cache: int
    """KV cache of one generator, 0 where weights alone fill the memory; on GPUs worked out for 80 GiB each."""
    kv_sequences: int
    """Sequences of greatest length that fit into it (a number)."""
    weight_update: int
    """One weight update to the generators."""
    shared: SharedPlan | None = None
    """Of one GPU that a learner rank and a generator time-share; None where each has its own."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Bytes on one GPU, by which side works; the sleeping side is a rough figure."""

    generate: int
    """The generator's share of the GPU, and what a sleeping rank keeps."""
    learn: int
    """The rank, and what a sleeping engine keeps."""
    host: int
    """Host memory of a sleeping rank: its offloaded state."""


def read_shape(model: Path) -> ModelShape:
    """The shape that ``config.json`` states. Raises ``ModelError`` naming what it lacks."""
    path = model / "config.json"
    try:
        stated: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stated = stated.get("text_config", stated)
        kind, heads = str(stated.get("model_type", "")), int(stated["num_attention_heads"])
        return ModelShape(
            layers=int(stated["num_hidden_layers"]),
            hidden=int(stated["hidden_size"]),
            intermediate=int(stated["intermediate_size"]),
            vocabulary=int(stated["vocab_size"]),
            heads=heads,
            kv_heads=int(stated.get("num_key_value_heads") or heads),
            head_dim=int(stated.get("head_dim") or int(stated["hidden_size"]) // heads),
            tied=bool(stated.get("tie_word_embeddings", False)),
            attention_bias=bool(stated.get("attention_bias", kind == "qwen2")),
            head_norms=kind == "qwen3",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: the model's shape cannot be read: {error!r}") from None


def plan_memory(config: Config, shape: ModelShape) -> MemoryPlan:
    """Memory of one learner rank and one generator."""
    learner, generator = config.learner, config.generator
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    computed = _width(learner.dtype, learner.gpus)
    served = _width(generator.dtype, generator.gpus)
    weights = shape.parameters
    if generator.gpus:
        memory = int(GPU_GIB * GIB * generator.memory_utilization) * generator.tensor_parallel
        cache = max(0, memory - weights * served)
    else:
        cache = int(generator.kv_cache_gib * GIB)
    sequence = shape.kv_bytes(served) * longest
    kept = KEPT_BYTES if config.update.stream and config.update.prompts < config.rollout.prompts else 0
    state, copy = -(-weights * (TRAINING_BYTES + kept) // learner.shards), weights * computed
    reference = -(-weights * 4 // learner.shards) + copy if config.loss.kl_coef else 0
    tokens = max(learner.micro_batch_tokens, longest)
    activations = shape.activation_bytes(tokens, computed, checkpointing=learner.activation_checkpointing)
    activations += GPU_HEAD_BYTES if learner.gpus else CPU_HEAD_BYTES
    # The output embedding's gradient is summed in float32 and handed on in the compute type.
    activations += shape.vocabulary * shape.hidden * (4 if computed == 4 else 4 + computed)
    rank = state + copy + reference + activations
    rests = state + -(-weights * 4 // learner.shards) * (config.loss.kl_coef > 0)
    on_gpu = rank - rests if learner.cpu_offload else rank
    return MemoryPlan(
        parameters=weights,
        learner=rank,
        learner_state=state,
        learner_copy=copy,
        learner_reference=reference,
        learner_activations=activations,
        kv_token=shape.kv_bytes(served),
        kv_sequence=sequence,
        kv_cache=cache,
        kv_sequences=cache // sequence,
        weight_update=weights * served,
        shared=SharedPlan(
            generate=int(GPU_GIB * GIB * generator.memory_utilization) + ASLEEP_BYTES,
            learn=on_gpu + ASLEEP_BYTES,
            host=rests,
        )
        if config.cluster.placement == "colocated" and learner.gpus
        else None,
    )


def _width(dtype: str, gpus: float) -> int:
    """Bytes of a value; ``auto`` is bfloat16 on GPU and float32 on CPU."""
    if dtype == "auto":
        return 2 if gpus else 4
    return 4 if dtype == "float32" else 2
