"""Shapes of models of the hub, as their ``config.json`` has them: what the documentation, benchmarks and tests plan with."""

from __future__ import annotations

from rlep.plan.model_shape import ModelShape

Sizes = tuple[int, int, int, int, int, int, int]
"""Layers, hidden, intermediate, vocabulary, heads, key heads, their size."""


def _llama(*sizes: *Sizes, tied: bool) -> ModelShape:
    return ModelShape(*sizes, tied=tied, attention_bias=False)


def qwen2(*sizes: *Sizes, tied: bool) -> ModelShape:
    """Return the shape of a Qwen2 or Qwen2.5."""
    return ModelShape(*sizes, tied=tied, attention_bias=True)


def _qwen3(*sizes: *Sizes, tied: bool) -> ModelShape:
    return ModelShape(*sizes, tied=tied, attention_bias=False, head_norms=True)


MODELS: dict[str, ModelShape] = {
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 151936, 16, 8, 128, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 151936, 16, 8, 128, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 151936, 32, 8, 128, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 151936, 32, 8, 128, tied=False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 17408, 151936, 40, 8, 128, tied=False),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen2(24, 896, 4864, 151936, 14, 2, 64, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": qwen2(28, 1536, 8960, 151936, 12, 2, 128, tied=True),
    "Qwen/Qwen2.5-3B-Instruct": qwen2(36, 2048, 11008, 151936, 16, 2, 128, tied=True),
    "Qwen/Qwen2.5-Math-7B": qwen2(28, 3584, 18944, 152064, 28, 4, 128, tied=False),
    "Qwen/Qwen2.5-14B-Instruct": qwen2(48, 5120, 13824, 152064, 40, 8, 128, tied=False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(30, 576, 1536, 49152, 9, 3, 64, tied=True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _llama(24, 2048, 8192, 49152, 32, 32, 64, tied=True),
    "HuggingFaceTB/SmolLM3-3B": _llama(36, 2048, 11008, 128256, 16, 4, 128, tied=True),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(16, 2048, 8192, 128256, 32, 8, 64, tied=True),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(28, 3072, 8192, 128256, 24, 8, 128, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(32, 4096, 14336, 128256, 32, 8, 128, tied=False),
}
