"""The model families that are known to load, train and publish; ``docs/reference/configuration.md`` has the same table.

Each is shown by ``tests/engines/test_families.py``: log-probs of the learner equal transformers' own, an update, and vLLM's
log-probs after the weights have been published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlep.core.errors import ModelError
from rlep.core.model_config import read_config

FAMILIES: dict[str, str] = {
    "arcee": "Arcee",
    "gemma": "Gemma",
    "gemma3_text": "Gemma 3, text",
    "glm4": "GLM-4",
    "granite": "Granite 3",
    "llama": "Llama 2 and 3",
    "mistral": "Mistral",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "phi3": "Phi-3 and 4",
    "qwen2": "Qwen2 and 2.5",
    "qwen3": "Qwen3",
    "seed_oss": "Seed-OSS",
    "smollm3": "SmolLM3",
    "starcoder2": "StarCoder2",
}
"""transformers' ``model_type`` -> what people call it."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM computes on CPUs; with another one its engine dies at the first request."""


def check_family(model_dir: Path, context: int) -> None:
    """Raise ``ModelError`` where the learner does not train models of this family, by its ``config.json``, on such sequences.

    ``context``: tokens of the longest one.
    """
    stated = read_config(model_dir)
    kind = str(stated.get("model_type", ""))
    if not kind:
        raise ModelError(f"{model_dir / 'config.json'} states no model_type")
    if kind in FAMILIES:
        if (short := _short_context(stated)) is not None and context > short:
            raise ModelError(
                f"data.max_prompt_tokens and rollout.max_tokens make sequences of {context} tokens: with more than {short} the "
                f"LongRoPE of {model_dir} has factors by the longest sequence of a batch in the learner and of all in vLLM, so "
                "that log-probs would differ; lower one of them"
            )
        return
    experts = any(key in stated for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    why = "mixture-of-experts models are" if experts else f"family {kind!r} is"
    raise ModelError(
        f"{model_dir} is a {kind} model, and {why} not trained by rlep; it trains {', '.join(sorted(FAMILIES))} "
        "(docs/reference/configuration.md)"
    )


def check_unquantised(model_dir: Path) -> None:
    """Raise ``ModelError`` where a model's weights are quantised, by its ``config.json``: nothing here reads their scales."""
    if read_config(model_dir).get("quantization_config"):
        raise ModelError(
            f"{model_dir} is quantised (quantization_config in its config.json), and rlep reads no quantised weights: take the "
            "unquantised model"
        )


def ties_head(model: Path) -> bool:
    """Return True if a model's config makes its output head and its embedding one matrix, whatever its files hold.

    Raises:
        ModelError: no config that transformers knows.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{model} is not a model that transformers knows: {error}") from error
    return bool(config.get_text_config().tie_word_embeddings)


def _short_context(stated: dict[str, Any]) -> int | None:
    """The longest sequence for which LongRoPE (Phi-3 and 4) keeps its short factors; None for other models.

    In an engine that may have longer ones vLLM takes the long factors for all, transformers for those that are longer.
    """
    rope = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    if not isinstance(rope, dict) or not {"longrope", "su"} & {rope.get("rope_type"), rope.get("type")}:
        return None
    key, usual = "original_max_position_embeddings", {"phi3": 4096}  # transformers' default
    length = rope.get(key) or stated.get(key) or usual.get(stated["model_type"])
    return length if isinstance(length, int) else None
