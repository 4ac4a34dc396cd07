"""The model families that are known to load, train and publish; ``docs/reference/configuration.md`` has the same table.

Each is shown by ``tests/engines/test_families.py``: log-probs of the learner equal transformers' own, an update, and vLLM's
log-probs after the weights have been published.
"""

from __future__ import annotations

import json
from pathlib import Path

from rlep.core.errors import ModelError

FAMILIES: dict[str, str] = {
    "arcee": "Arcee: `arcee-ai/AFM-4.5B`",
    "gemma": "Gemma: `google/gemma-2b-it`",
    "gemma3_text": "Gemma 3, text: `google/gemma-3-1b-it`",
    "glm4": "GLM-4: `zai-org/GLM-4-9B-0414`",
    "granite": "Granite 3: `ibm-granite/granite-3.3-2b-instruct`",
    "llama": "Llama 2 and 3: `meta-llama/Llama-3.2-1B-Instruct`; SmolLM2: `HuggingFaceTB/SmolLM2-1.7B-Instruct`",
    "mistral": "Mistral: `mistralai/Mistral-7B-Instruct-v0.3`",
    "olmo2": "OLMo 2: `allenai/OLMo-2-1124-7B-Instruct`",
    "olmo3": "OLMo 3: `allenai/Olmo-3-7B-Instruct`",
    "phi3": "Phi-3 and 4: `microsoft/phi-4`",
    "qwen2": "Qwen2 and 2.5: `Qwen/Qwen2.5-Math-7B`; R1 distilled: `deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B`",
    "qwen3": "Qwen3: `Qwen/Qwen3-1.7B`, `Qwen/Qwen3-4B-Instruct-2507`",
    "seed_oss": "Seed-OSS: `ByteDance-Seed/Seed-OSS-36B-Instruct`",
    "smollm3": "SmolLM3: `HuggingFaceTB/SmolLM3-3B`",
    "starcoder2": "StarCoder2: `bigcode/starcoder2-3b`",
}
"""transformers' ``model_type`` -> what people call it, and ids on the Hugging Face hub, e.g. these."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM computes on CPUs; with another one its engine dies at the first request."""


def check_family(model_dir: Path) -> None:
    """Raise ``ModelError`` where the learner is not known to train models of this family, named by its ``config.json``."""
    path = model_dir / "config.json"
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        kind = str(stated["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: no readable model_type: {error!r}") from error
    if kind in FAMILIES:
        return
    experts = any(key in stated for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    why = "mixture-of-experts models are" if experts else f"family {kind!r} is"
    raise ModelError(
        f"{model_dir} is a {kind} model, and {why} not trained by rlep; it trains {', '.join(sorted(FAMILIES))} "
        "(docs/reference/configuration.md)"
    )
