"""Every family of the table, as a tiny random model of transformers: loaded, trained, published and served by a real vLLM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from rlep.check.data_checks import check_output_head
from rlep.check.parts.synthetic import Rig
from rlep.check.parts.transfer_checks import weights
from rlep.config.settings import load_config
from rlep.core.errors import ModelError
from rlep.core.types import Float32Array, SequenceBatch, UpdateOutcome
from rlep.engines.families import FAMILIES
from rlep.engines.learner.rank import LearnerRank
from rlep.plan.model_shape import TIED_UNLESS_STATED
from tests.small import BASE

pytestmark = [pytest.mark.usefixtures("environment"), pytest.mark.timeout(600)]
TOKENIZER = Path("rlep/quickstart/model").absolute()
SIZES: dict[str, Any] = {
    "vocab_size": 42,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
WINDOWED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
"""A window shorter than the sequences, in one of the two layers."""
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 6},
    "gemma3_text": WINDOWED | {"query_pre_attn_scalar": 32},
    "olmo3": WINDOWED,
    "qwen3": {"tie_word_embeddings": True},
    "granite": {
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.1,
        "logits_scaling": 8.0,
    },
}


class Compared(LearnerRank):
    """A rank whose scores are compared with transformers' own."""

    def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """The same, if it is."""
        found = super().score(batch, rollout=rollout)
        if not self._updates:
            np.testing.assert_allclose(found, _scores(self._source, batch), atol=2e-5)
        return found

    def update(self, batch: SequenceBatch, *, rollout: int) -> UpdateOutcome:
        """One that was applied."""
        report = super().update(batch, rollout=rollout)
        assert not report.skipped
        assert report.grad_norm > 0
        return report


def _scores(directory: Path, batch: SequenceBatch) -> Float32Array:
    """Log-probs ``[R]`` by transformers' eager attention, sequence by sequence."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for tokens, prompt in zip(np.split(batch.tokens, batch.offsets[1:-1]), batch.prompt_lengths, strict=True):
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.no_grad():
            scores = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        found.append(scores[torch.arange(int(prompt) - 1, len(ids) - 1), ids[prompt:]].numpy())
    result: Float32Array = np.concatenate(found)
    return result


def write_model(directory: Path, family: str) -> None:
    """A random model whose predictions are far enough from uniform that a wrong mask or position shows."""
    torch.manual_seed(0)
    sizes = SIZES | CHANGES.get(family, {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    model.save_pretrained(directory)
    for file in TOKENIZER.glob("*token*"):
        shutil.copy(file, directory / file.name)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_loads_trains_and_publishes(family: str, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("model", "scratch", "shared")]
    for place in places:
        place.mkdir()
    write_model(places[0], family)
    config = load_config([BASE], [f'model.path="{places[0]}"'])
    rig = Rig(config, *places)
    assert "of the learner's" in weights(rig, Compared)


@pytest.mark.parametrize("family", ["qwen3", "gemma"])  # a tied head by config.json, and by the family's default
def test_a_tied_head_that_the_files_hold_too_is_published_once(family: str, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("model", "scratch", "shared")]
    for place in places:
        place.mkdir()
    write_model(places[0], family)
    file = places[0] / "model.safetensors"
    held = load_file(file)
    assert "lm_head.weight" not in held
    head = held["model.embed_tokens.weight"].clone()
    save_file(held | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    config = load_config([BASE], [f'model.path="{places[0]}"'])
    check_output_head(places[0])
    assert "of the learner's" in weights(Rig(config, *places), Compared)
    save_file(held | {"lm_head.weight": -head}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="tie_word_embeddings is true, and the safetensors hold"):
        check_output_head(places[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_knows_which_heads_are_tied_unless_stated(family: str) -> None:
    tied = AutoConfig.for_model(family).get_text_config().tie_word_embeddings
    assert (family in TIED_UNLESS_STATED) == tied


@pytest.mark.parametrize("family", ["qwen2", "phi3"])  # layers of their own, and fused ones
def test_adapters_are_published_merged(family: str, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("model", "scratch", "shared")]
    for place in places:
        place.mkdir()
    write_model(places[0], family)
    config = load_config([BASE], [f'model.path="{places[0]}"', "learner.lora_rank=4"])
    assert "of the learner's" in weights(Rig(config, *places), Compared)
