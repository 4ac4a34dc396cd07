"""Operations and memory of an optimizer update."""

from __future__ import annotations

import resource

import numpy as np
import torch
from transformers import PreTrainedConfig

from rlep.core.types import SequenceBatch

PEAK_BFLOAT16 = {
    "MIG": 0.0,  # a slice of a device, of unknown size
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835.5e12,
    "H200": 989e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "L40S": 362e12,
}
"""Dense bfloat16 operations per second by a part of the device's name, from NVIDIA's data sheets; the first match counts."""


def model_flops(config: PreTrainedConfig, weights: int, batch: SequenceBatch, *, frozen: bool = False) -> float:
    """Operations of one update: 6 per weight and token, and 6 · layers · width · length² for causal attention.

    Args:
        config: the model's; width is heads × head size.
        weights: number of distinct weights.
        batch: the update.
        frozen: the weights have no gradient of their own (LoRA): 4 per weight and token. Adapters are not counted.

    Source: PaLM (arXiv 2204.02311), appendix B, halved for the causal half of the attention matrix.
    """
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.hidden_size  # looking up an input embedding multiplies nothing
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * head_size
    squares = float((np.diff(batch.offsets).astype(np.float64) ** 2).sum())
    return (4.0 if frozen else 6.0) * weights * len(batch.tokens) + 6.0 * config.num_hidden_layers * width * squares


def peak_flops(device: torch.device, dtype: str, ranks: int) -> float:
    """Operations per second that all ranks' devices can do, 0 where that is not known (CPUs, other types, other GPUs)."""
    if device.type != "cuda" or dtype != "bfloat16":
        return 0.0
    name = torch.cuda.get_device_name(device)
    return ranks * next((peak for part, peak in PEAK_BFLOAT16.items() if part in name), 0.0)


def peak_memory(device: torch.device) -> int:
    """Bytes at this process's peak so far: GPU memory, or resident memory on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Forget a GPU's peak so far; a CPU process's stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
