"""One rank on a real GPU: float32 there is float32 of the padded reference, bfloat16 stays near it, asleep its memory is free.

Run alone: python -m pytest tests/engines/learner/test_learner_cuda.py. Without a GPU every test is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlep.engines.learner.rank import LearnerRank
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import SharedMemoryWeights
from tests.engines.learner.learner_cases import (
    padded_gradients,
    padded_logprobs,
    ragged_batch,
    relative_error,
    with_near_old_logprobs,
    write_tiny_model,
)
from tests.engines.learner.learner_process import gradients_of_first_update, same, weights_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Start = Callable[..., LearnerRank]
GPU: dict[str, Any] = {"gpus": 1.0}
EXACT = GPU | {"dtype": "float32"}


def gradients(learner: LearnerRank) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in gradients_of_first_update(learner).items()}


@pytest.mark.parametrize("architecture", ["qwen2-tied", "qwen3", "mistral-window"])
def test_float32_is_the_padded_reference(architecture: str, start: Start, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model", architecture)
    learner, batch = start(directory, micro_batch_tokens=64, learner=EXACT), ragged_batch()
    scored = learner.score(batch)
    with torch.no_grad():
        wanted = torch.cat(padded_logprobs(AutoModelForCausalLM.from_pretrained(directory).eval(), batch)[0])
    np.testing.assert_allclose(scored, wanted, atol=1e-4)
    batch = with_near_old_logprobs(batch, scored)
    report = learner.update(batch, rollout=0)
    loss, reference = padded_gradients(directory, batch)
    assert report.loss == pytest.approx(loss, rel=1e-5)
    assert relative_error(gradients(learner), reference) < 1e-5


@pytest.mark.parametrize(
    "settings",
    [{}, {"activation_checkpointing": True}, {"reshard_after_forward": True}, {"cpu_offload": True}, {"compile": True}],
    ids=lambda settings: "-".join(settings) or "plain",
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
def test_bfloat16_stays_near_the_reference_with_every_option(
    settings: dict[str, bool], start: Start, model: Path
) -> None:
    learner, batch = start(micro_batch_tokens=64, learner=GPU | settings), ragged_batch()
    report = learner.update(batch, rollout=0)
    loss, reference = padded_gradients(model, batch)
    # bfloat16 keeps 8 bits, 0.4 % of each value: a wrong mask, window or sum is off by tens of per cent.
    assert report.loss == pytest.approx(loss, rel=0.01)
    assert 1e-4 < relative_error(gradients(learner), reference) < 0.1


def test_asleep_it_holds_no_gpu_memory_and_it_goes_on_to_the_bit(start: Start) -> None:
    learner, batch = start(learner=GPU), ragged_batch()
    learner.update(batch, rollout=0)
    before, weights = learner.score(batch), weights_of(learner)
    state = 12 * sum(weight.numel() for weight in weights.values())
    weights = {name: weight.cpu() for name, weight in weights.items()}
    for _ in range(2):
        awake = torch.cuda.memory_allocated()
        learner.sleep()
        assert awake - torch.cuda.memory_allocated() >= state
        learner.wake()
        np.testing.assert_array_equal(learner.score(batch), before)
    assert same({name: weight.cpu() for name, weight in weights_of(learner).items()}, weights)


def test_what_is_published_from_a_gpu_holds_every_bit(start: Start, tmp_path: Path) -> None:
    learner, batch = start(learner=GPU), ragged_batch(sequences=3)
    learner.update(batch, rollout=0)
    parts = np.split(batch.tokens, batch.offsets[1:-1])
    probes = [(part[:cut], part[cut:]) for part, cut in zip(parts, batch.prompt_lengths, strict=True)]
    update = learner.publish(SharedMemoryWriter(tmp_path), 1, probes, "bfloat16")
    assert update is not None
    assert isinstance(update.source, SharedMemoryWeights)
    wanted = {name: weight.bfloat16().cpu() for name, weight in weights_of(learner).items()}
    assert same(load_file(update.source.path), wanted)
    assert update.checksums == tuple(int(checksum(weight)) for weight in wanted.values())


def test_a_checkpoint_of_a_gpu_goes_on_to_the_bit_there_and_within_rounding_on_a_cpu(
    start: Start, tmp_path: Path
) -> None:
    first, second = ragged_batch(seed=1), ragged_batch(seed=2)
    learner = start(learner=EXACT)
    learner.update(first, rollout=0)
    learner.save(tmp_path / "checkpoint")
    learner.update(second, rollout=1)
    assert learner.written(60.0)
    wanted = {name: weight.cpu() for name, weight in weights_of(learner).items()}
    for section, nearness in ((EXACT, 0.0), ({}, 1e-5)):
        again = start(learner=section)
        again.load(tmp_path / "checkpoint")
        again.update(second, rollout=1)
        found = {name: weight.cpu() for name, weight in weights_of(again).items()}
        assert relative_error(found, wanted) <= nearness
