"""Families that the learner does not train are refused by name, mixture-of-experts models as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlep.core.errors import ModelError
from rlep.engines.families import FAMILIES, check_family, check_unquantised


def described(directory: Path, **stated: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(stated))
    return directory


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_families_of_the_table_are_taken(kind: str, tmp_path: Path) -> None:
    check_family(described(tmp_path, model_type=kind), 4096)


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"model_type": "gpt2"}, "is a gpt2 model, and family 'gpt2' is not trained by rlep; it trains arcee, "),
        (
            {"model_type": "qwen3_moe", "num_experts": 128},
            "is a qwen3_moe model, and mixture-of-experts models are not",
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 8},
            "is a mixtral model, and mixture-of-experts models are not",
        ),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "mixture-of-experts models are not trained by rlep"),
        ({}, "config.json states no model_type"),
    ],
)
def test_anything_else_is_refused_by_name(stated: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        check_family(described(tmp_path, **stated), 4096)
    assert reason in str(caught.value)


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json, so this is not a model directory"):
        check_family(tmp_path, 4096)


@pytest.mark.parametrize("stated", [{}, {"quantization_config": None}, {"quantization_config": {}}])
def test_a_config_that_states_no_quantisation_is_taken(stated: dict[str, Any], tmp_path: Path) -> None:
    check_unquantised(described(tmp_path, **stated))


@pytest.mark.parametrize("method", ["fp8", "gptq", "bitsandbytes", "compressed-tensors"])
def test_a_quantised_model_is_refused_with_what_to_take(method: str, tmp_path: Path) -> None:
    model = described(tmp_path, model_type="qwen3", quantization_config={"quant_method": method})
    with pytest.raises(ModelError, match=f"^{tmp_path} is quantised .*: take the unquantised model$"):
        check_unquantised(model)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json cannot be read: AttributeError"):
        check_unquantised(model)


@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_scaling": {"type": "longrope"},
            "original_max_position_embeddings": 4096,
        },  # as Phi-3.5 and Phi-4 state it
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}},
        {"rope_scaling": {"type": "su"}},  # Phi-3 of its first months, whose length is transformers' default
    ],
)
def test_sequences_beyond_the_short_factors_of_longrope_are_refused(rope: dict[str, Any], tmp_path: Path) -> None:
    model = described(tmp_path, model_type="phi3", **rope)
    check_family(model, 4096)
    with pytest.raises(ModelError, match="sequences of 4097 tokens: with more than 4096 the LongRoPE of"):
        check_family(model, 4097)
