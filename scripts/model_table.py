"""The table of models of the hub with the shipped machine that suits each; ``docs/reference/configuration.md`` shows it."""

from __future__ import annotations

from pathlib import Path

from rlep.config.settings import load_config
from rlep.plan.fit import plan_fit
from rlep.plan.model_shape import ModelShape

CONFIGS = Path(__file__).parents[1] / "configs"
MACHINES = {"1x24gb": 23.5, "1x24gb-lora": 23.5, "1x80gb": 79.0, "1x80gb-lora": 79.0, "8x80gb": 79.0}
"""Shipped machine, smallest first -> GiB of a GPU that programs can have."""


def _llama(*sizes: int, tied: bool) -> ModelShape:
    return ModelShape(*sizes, tied=tied, attention_bias=False)


def _qwen2(*sizes: int, tied: bool) -> ModelShape:
    return ModelShape(*sizes, tied=tied, attention_bias=True)


def _qwen3(*sizes: int, tied: bool) -> ModelShape:
    return ModelShape(*sizes, tied=tied, attention_bias=False, head_norms=True)


# Layers, hidden, intermediate, vocabulary, heads, key heads, their size.
MODELS: dict[str, ModelShape] = {
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 151936, 16, 8, 128, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 151936, 16, 8, 128, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 151936, 32, 8, 128, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 151936, 32, 8, 128, tied=False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 17408, 151936, 40, 8, 128, tied=False),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(24, 896, 4864, 151936, 14, 2, 64, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(28, 1536, 8960, 151936, 12, 2, 128, tied=True),
    "Qwen/Qwen2.5-3B-Instruct": _qwen2(36, 2048, 11008, 151936, 16, 2, 128, tied=True),
    "Qwen/Qwen2.5-Math-7B": _qwen2(28, 3584, 18944, 152064, 28, 4, 128, tied=False),
    "Qwen/Qwen2.5-14B-Instruct": _qwen2(48, 5120, 13824, 152064, 40, 8, 128, tied=False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(30, 576, 1536, 49152, 9, 3, 64, tied=True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _llama(24, 2048, 8192, 49152, 32, 32, 64, tied=True),
    "HuggingFaceTB/SmolLM3-3B": _llama(36, 2048, 11008, 128256, 16, 4, 128, tied=True),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(16, 2048, 8192, 128256, 32, 8, 64, tied=True),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(28, 3072, 8192, 128256, 24, 8, 128, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(32, 4096, 14336, 128256, 32, 8, 128, tied=False),
}


def fitting(shape: ModelShape, *, lora: bool) -> str:
    """Return the smallest shipped machine that trains all weights, or adapters; ``–`` where none does."""
    for machine, gib in MACHINES.items():
        config = load_config([CONFIGS / "paper" / "rlep.toml", CONFIGS / "machines" / f"{machine}.toml"])
        fits = plan_fit(config, shape, gpu_bytes=int(gib * 2**30), host_bytes=None).fits
        if machine.endswith("-lora") == lora and fits:
            return machine
    return "–"


def table() -> str:
    """Return the table as Markdown."""
    rows = [
        f"| `{name}` | {shape.parameters / 1e9:.2f} B | {shape.parameters * 2 / 1e9:.1f} GB | "
        f"{fitting(shape, lora=False)} | {fitting(shape, lora=True)} |"
        for name, shape in MODELS.items()
    ]
    return "\n".join(["| `model.path` | Parameters | Download | All weights | LoRA |", "|---|---|---|---|---|", *rows])
