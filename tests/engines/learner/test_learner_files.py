"""What a learner writes and reads: checkpoints that resume to the bit, models others load, weights for generators."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlep.core.errors import CheckpointError, DeadlineExceeded, UpdateError, WeightSyncError
from rlep.core.types import Int32Array, SequenceBatch
from rlep.engines.learner import trainer_state
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import SharedMemoryWeights, check_shared_memory, read_layout
from tests.engines.learner.learner_cases import padded_logprobs, ragged_batch, write_tiny_model
from tests.engines.learner.learner_process import same, weights_of

Start = Callable[..., LearnerRank]


def test_resume_is_to_the_bit(start: Start, tmp_path: Path) -> None:
    first, second = ragged_batch(seed=1), ragged_batch(seed=2)
    optimizer = {"lr": 1e-3, "warmup": 4, "unit": "updates"}
    learner = start(update=optimizer)
    learner.update(first, rollout=0)
    saved(learner, tmp_path)
    noise, report, wanted = torch.rand(3), learner.update(second, rollout=0), weights_of(learner)
    resumed = start(update=optimizer)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3), noise)
    again = resumed.update(second, rollout=0)
    assert (again.loss, again.grad_norm, again.learning_rate) == (report.loss, report.grad_norm, report.learning_rate)
    assert same(weights_of(resumed), wanted)


def test_training_goes_on_while_the_state_of_the_save_is_written(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ragged_batch(seed=1), ragged_batch(seed=2)
    learner = start()
    learner.update(first, rollout=0)
    wanted, steps = weights_of(learner), learner._optimizer.steps
    may_write, write_model = threading.Event(), trainer_state.write_model

    def late(*arguments: Any) -> None:
        assert may_write.wait(60)
        write_model(*arguments)

    monkeypatch.setattr("rlep.engines.learner.rank.write_model", late)
    learner.save(tmp_path)
    learner.update(second, rollout=0)
    assert not learner.written()
    with pytest.raises(CheckpointError, match="still being written"):
        learner.save(tmp_path / "other")
    may_write.set()
    assert learner.written(60.0)
    assert not same(weights_of(learner), wanted)
    learner.load(tmp_path)
    assert same(weights_of(learner), wanted)
    assert same(load_file(tmp_path / "model" / "model.safetensors"), wanted)
    assert learner._optimizer.steps == steps


def test_a_save_that_cannot_be_written_is_told_and_the_next_one_is(start: Start, tmp_path: Path) -> None:
    learner = start()
    (tmp_path / "file").write_text("")
    learner.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match=f"cannot write trainer state to {tmp_path}/file/trainer"):
        learner.written(60.0)
    saved(learner, tmp_path)


def test_a_full_disk_is_told_in_one_line_with_the_rank_that_met_it(start: Start, tmp_path: Path) -> None:
    learner = start()
    (tmp_path / "full" / "trainer").mkdir(parents=True)
    (tmp_path / "full" / "trainer" / "shard-00001-model-00001-of-00001.safetensors").symlink_to("/dev/full")
    learner.save(tmp_path / "full")
    with pytest.raises(CheckpointError) as raised:
        learner.written(60.0)
    assert str(raised.value) == (
        f"cannot write trainer state to {tmp_path}/full/trainer: rank 0: OSError: [Errno 28] No space left on device"
    )
    saved(learner, tmp_path)


def test_a_save_that_takes_too_long_is_told(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    monkeypatch.setattr("rlep.engines.learner.rank.write_model", lambda *_: may_write.wait(60))
    learner = start()
    learner.save(tmp_path)
    with pytest.raises(DeadlineExceeded, match="not written within 0 s"):
        learner.written(0.01)
    may_write.set()
    assert learner.written(60.0)


def test_loading_takes_effect_on_the_very_next_score(start: Start, tmp_path: Path) -> None:
    learner = start()
    batch = ragged_batch()
    base = learner.score(batch)
    saved(learner, tmp_path)
    learner.update(batch, rollout=0)
    assert np.abs(learner.score(batch) - base).max() > 1e-3
    learner.load(tmp_path)
    assert np.array_equal(learner.score(batch), base)
    assert learner._optimizer.steps == 0


@pytest.mark.parametrize("architecture", ["qwen2-tied", "qwen2"])
def test_the_saved_model_is_one_that_transformers_loads(
    architecture: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_tiny_model(tmp_path / "base", architecture)
    monkeypatch.setattr(trainer_state, "MAX_FILE_BYTES", 20_000)
    learner = start(directory)
    batch = ragged_batch()
    learner.update(batch, rollout=0)
    saved(learner, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        np.testing.assert_allclose(learner.score(batch), torch.cat(padded_logprobs(loaded, batch)[0]), atol=1e-5)
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 1
    assert all(file.stat().st_size < 25_000 for file in files)
    assert (tmp_path / "model" / "tokenizer.json").read_text() == (directory / "tokenizer.json").read_text()


def test_a_bfloat16_learner_saves_bfloat16_and_resumes_from_float32(start: Start, tmp_path: Path) -> None:
    learner = start(learner={"dtype": "bfloat16"})
    learner.update(ragged_batch(), rollout=0)
    saved(learner, tmp_path)
    wanted = weights_of(learner)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model" / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    resumed = start(learner={"dtype": "bfloat16"})
    resumed.load(tmp_path)
    assert same(weights_of(resumed), wanted)


@pytest.mark.parametrize("damage", ["missing", "torn", "no position", "other model"])
def test_a_damaged_checkpoint_is_refused(damage: str, start: Start, tmp_path: Path) -> None:
    learner = start()
    saved(learner, tmp_path)
    trainer = tmp_path / "trainer"
    (shard,) = trainer.glob("*.safetensors")
    if damage == "missing":
        shutil.rmtree(trainer)
    elif damage == "torn":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "no position":
        (trainer / "position.json").unlink()
    else:
        learner = start(write_tiny_model(tmp_path / "other", "qwen3"))
    with pytest.raises(CheckpointError, match=f"cannot read trainer state from {trainer}"):
        learner.load(tmp_path)


def test_a_publication_holds_the_weights_and_log_probs_to_check_them_by(start: Start, tmp_path: Path) -> None:
    learner = start()
    batch = ragged_batch(sequences=3)
    learner.update(batch, rollout=0)
    probes = probes_of(batch)
    weight_update = learner.publish(SharedMemoryWriter(tmp_path), 4, probes, "float32")
    assert weight_update is not None
    assert (weight_update.version, weight_update.tolerance) == (4, 1e-4)
    assert isinstance(weight_update.source, SharedMemoryWeights)
    check_shared_memory(weight_update.source, 4)
    assert same(load_file(weight_update.source.path), weights_of(learner))
    assert read_layout(weight_update.source.path)[0] == {spec.name: spec for spec in weight_update.layout}
    scored = np.concatenate([probe.logprobs for probe in weight_update.probes])
    np.testing.assert_allclose(scored, learner.score(batch), atol=1e-6)
    assert all(
        np.array_equal(probe.prompt, prompt) for probe, (prompt, _) in zip(weight_update.probes, probes, strict=True)
    )


def test_a_publication_is_checked_at_temperature_1_whatever_the_loss_is_at(start: Start, tmp_path: Path) -> None:
    batch = ragged_batch(sequences=3)
    plain = start().score(batch)
    learner = start(rollout={"temperature": 0.6}, loss={"temperature": "rollout"})
    weight_update = learner.publish(SharedMemoryWriter(tmp_path), 0, probes_of(batch), "float32")
    assert weight_update is not None
    np.testing.assert_allclose(np.concatenate([probe.logprobs for probe in weight_update.probes]), plain, atol=1e-6)
    assert float(np.abs(learner.score(batch) - plain).max()) > 0.1


def test_generators_in_half_precision_get_half_precision(start: Start, tmp_path: Path) -> None:
    learner = start()
    weight_update = learner.publish(SharedMemoryWriter(tmp_path), 0, probes_of(ragged_batch(sequences=3)), "bfloat16")
    assert weight_update is not None
    assert isinstance(weight_update.source, SharedMemoryWeights)
    wanted = {name: weight.bfloat16() for name, weight in weights_of(learner).items()}
    assert same(load_file(weight_update.source.path), wanted)
    bits = [weight.view(torch.int16).flatten().tolist() for weight in wanted.values()]
    assert weight_update.checksums == tuple(sum(each * each + each for each in one) % 2**40 for one in bits)


def test_updates_that_change_no_weight_are_said_when_it_is_published(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch, writer = start(), ragged_batch(), SharedMemoryWriter(tmp_path)
    learner.publish(writer, 0, probes_of(batch), "float32")
    learner.publish(writer, 1, probes_of(batch), "float32")  # no update, no change
    with monkeypatch.context() as patch:
        patch.setattr(learner._optimizer._adamw, "step", lambda: None)
        assert learner.update(batch, rollout=0).skipped == ""
        with pytest.raises(UpdateError, match="the updates before policy version 2 were applied and changed no weight"):
            learner.publish(writer, 2, probes_of(batch), "float32")
    learner.update(batch, rollout=1)
    assert learner.publish(writer, 2, probes_of(batch), "float32") is not None


def test_a_change_below_bfloat16_leaves_what_is_published_as_it_is(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, writer = ragged_batch(), SharedMemoryWriter(tmp_path)
    learner = start()
    shards = [shard.to_local().detach() for _, shard in learner._trained]
    for shard in shards:
        shard.copy_(shard.bfloat16())

    def published(version: int) -> tuple[int, ...]:
        weight_update = learner.publish(writer, version, probes_of(batch), "bfloat16")
        assert weight_update is not None
        return weight_update.checksums

    first = published(0)
    monkeypatch.setattr(learner._optimizer._adamw, "step", lambda: [shard.mul_(1 + 2**-20) for shard in shards])
    learner.update(batch, rollout=0)
    assert published(1) == first


def test_a_segment_that_cannot_be_written_is_an_error_and_the_learner_goes_on(start: Start, tmp_path: Path) -> None:
    learner = start()
    probes = probes_of(ragged_batch(sequences=3))
    with pytest.raises(WeightSyncError, match="policy version 1"):
        learner.publish(SharedMemoryWriter(tmp_path / "nowhere"), 1, probes, "float32")
    assert learner.publish(SharedMemoryWriter(tmp_path), 1, probes, "float32") is not None


def saved(learner: LearnerRank, directory: Path) -> None:
    """Save and wait for the files."""
    learner.save(directory)
    assert learner.written(60.0)


def probes_of(batch: SequenceBatch) -> list[tuple[Int32Array, Int32Array]]:
    parts = np.split(batch.tokens, batch.offsets[1:-1])
    return [(part[:length], part[length:]) for part, length in zip(parts, batch.prompt_lengths, strict=True)]
