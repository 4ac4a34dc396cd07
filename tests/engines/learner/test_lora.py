"""Adapters: their gradients are peft's and those of the merged weights, and what is served and saved is the merged model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlep.core.errors import CheckpointError, ModelError
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.weights.checksums import checksum
from tests.engines.learner.learner_cases import (
    model_gradients,
    padded_gradients,
    padded_logprobs,
    ragged_batch,
    relative_error,
    with_near_old_logprobs,
    write_tiny_model,
)
from tests.engines.learner.learner_process import (
    Command,
    gradients_of_first_update,
    run_ranks,
    same,
    save_batch,
    weights_of,
)

Start = Callable[..., LearnerRank]
EACH: dict[str, Any] = {"lora_rank": 3, "lora_alpha": 6.0}  # scale 2; three rows on two ranks are cut unevenly
SOME: dict[str, Any] = {"lora_rank": 4, "lora_alpha": 2.0, "lora_targets": ("q_proj", "v_proj", "down_proj")}


def adapted(start: Start, lora: dict[str, Any], **options: Any) -> LearnerRank:
    """A learner whose adapters change the model: B is zero at first."""
    learner = start(learner={**options.pop("learner", {}), **lora}, **options)
    generator = torch.Generator().manual_seed(1)
    for _, shard in learner._trained:
        shard.to_local().detach().normal_(0.0, 0.2, generator=generator)
    return learner


def saved(learner: LearnerRank, directory: Path) -> Path:
    learner.save(directory)
    assert learner.written(60.0)
    return directory


def of_peft(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the learner's names."""
    return {
        name.removeprefix("base_model.model.").replace(".default.", "."): value for name, value in gradients.items()
    }


@pytest.mark.parametrize("lora", [EACH, SOME], ids=["all-linear", "three-targets"])
@pytest.mark.parametrize("architecture", ["qwen2-tied", "qwen3", "llama"])
def test_gradients_and_log_probs_are_those_of_peft_on_the_saved_adapter(
    architecture: str, lora: dict[str, Any], start: Start, tmp_path: Path
) -> None:
    directory = write_tiny_model(tmp_path / "model", architecture)
    learner = adapted(start, lora, base=directory, micro_batch_tokens=64)
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()
    peft = PeftModel.from_pretrained(base, str(saved(learner, tmp_path / "saved") / "adapter"), is_trainable=True)
    scored = learner.score(ragged_batch())
    with torch.no_grad():
        np.testing.assert_allclose(scored, torch.cat(padded_logprobs(peft, ragged_batch())[0]), atol=1e-5)
    batch = with_near_old_logprobs(ragged_batch(), scored)
    loss, gradients = model_gradients(peft, batch)
    assert learner.update(batch, rollout=0).loss == pytest.approx(loss, rel=1e-5)
    assert relative_error(gradients_of_first_update(learner), of_peft(gradients)) < 1e-5


@pytest.mark.parametrize("lora", [EACH, SOME], ids=["all-linear", "three-targets"])
def test_the_layers_that_get_adapters_and_their_shapes_are_those_of_peft(
    lora: dict[str, Any], start: Start, model: Path
) -> None:
    learner = start(learner=lora)
    targets = "all-linear" if lora is EACH else list(lora["lora_targets"])
    base = AutoModelForCausalLM.from_pretrained(model)
    peft = get_peft_model(
        base, LoraConfig(r=lora["lora_rank"], lora_alpha=int(lora["lora_alpha"]), target_modules=targets)
    )
    trainable = {name: tuple(value.shape) for name, value in peft.named_parameters() if value.requires_grad}
    assert {name: tuple(shard.shape) for name, shard in learner._trained} == of_peft(trainable)  # type: ignore[arg-type]
    for name, shard in learner._trained:
        limit = shard.shape[1] ** -0.5 if ".lora_A." in name else 0.0
        largest = float(shard.to_local().detach().abs().max())
        assert 0.8 * limit <= largest <= limit


@pytest.mark.parametrize("policy", [{}, {"activation_checkpointing": True}])
def test_gradients_follow_from_those_of_the_merged_weights_with_a_reference_policy_too(
    policy: dict[str, bool], start: Start, model: Path, tmp_path: Path
) -> None:
    """dA = s Bᵀ dW and dB = s dW Aᵀ, where dW is what full fine-tuning of the merged model computes."""
    batch, penalty = ragged_batch(), {"loss": {"kl_coef": 0.3}}
    learner = adapted(start, EACH, learner=policy, micro_batch_tokens=40, **penalty)
    merged = saved(learner, tmp_path / "saved") / "model"
    adapters = {name: shard.to_local().detach().clone() for name, shard in learner._trained}
    report, gradients = learner.update(batch, rollout=0), gradients_of_first_update(learner)
    base = start(model, **penalty)
    full = start(merged, **penalty)
    full._reference = base._reference  # the model without adapters, and not the merged one that it started from
    wanted = full.update(batch, rollout=0)
    assert report.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert report.sources["fresh/reference_kl"] == pytest.approx(wanted.sources["fresh/reference_kl"], rel=1e-4)
    assert wanted.sources["fresh/reference_kl"] > 1e-3
    chained = {}
    for weight, gradient in gradients_of_first_update(full).items():
        name = weight.removesuffix(".weight")
        if f"{name}.lora_A.weight" in adapters:
            a, b = (adapters[f"{name}.lora_{part}.weight"] for part in "AB")
            chained[f"{name}.lora_A.weight"] = 2.0 * b.double().T @ gradient.double()
            chained[f"{name}.lora_B.weight"] = 2.0 * gradient.double() @ a.double().T
    assert relative_error(gradients, chained) < 1e-4


def test_what_is_served_and_saved_is_the_merged_model(start: Start, model: Path, tmp_path: Path) -> None:
    learner = adapted(start, SOME)
    base, directory = load_file(model / "model.safetensors"), saved(learner, tmp_path / "saved")
    adapters = {name: shard.to_local().detach() for name, shard in learner._trained}
    served = weights_of(learner)
    assert served.keys() == base.keys()
    for name, weight in served.items():
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" in adapters:
            product = adapters[f"{stem}.lora_B.weight"].double() @ adapters[f"{stem}.lora_A.weight"].double()
            torch.testing.assert_close(weight.double(), base[name] + 0.5 * product, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(weight, base[name])
    assert sum(not torch.equal(served[name], base[name]) for name in base) == 2 * len(SOME["lora_targets"])
    assert same(load_file(directory / "model" / "model.safetensors"), served)
    for dtype in ("float32", "bfloat16"):
        rounded = learner._weights.gathered(dtype)  # type: ignore[arg-type]
        assert learner._weights.checksums(dtype) == tuple(int(checksum(weight)) for _, weight in rounded)  # type: ignore[arg-type]
    stated = json.loads((directory / "adapter" / "adapter_config.json").read_text())
    assert (stated["r"], stated["lora_alpha"], stated["peft_type"]) == (4, 2.0, "LORA")
    assert stated["target_modules"] == ["down_proj", "q_proj", "v_proj"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_adapters_are_trained_and_they_go_on_to_the_bit(
    dtype: Literal["float32", "bfloat16"], start: Start, model: Path, tmp_path: Path
) -> None:
    settings = {"learner": {"dtype": dtype, **EACH}, "update": {"lr": 1e-3, "warmup": 2}}
    learner = start(**settings)
    learner.update(ragged_batch(seed=1), rollout=0)
    directory = saved(learner, tmp_path / "saved")
    report, wanted = learner.update(ragged_batch(seed=2), rollout=1), weights_of(learner)
    (trainer,) = (directory / "trainer").glob("*.safetensors")
    stored = {name for name in load_file(trainer) if not name.startswith("rng.")}
    assert stored == {f"{kind}.{name}" for kind in ("weight", "exp_avg", "exp_avg_sq") for name, _ in learner._trained}
    frozen = [shard for _, shard in learner._policy.named_parameters() if not shard.requires_grad]
    assert {shard.dtype for shard in frozen} == {getattr(torch, dtype)}
    assert all(shard.grad is None for shard in frozen)
    assert {shard.dtype for _, shard in learner._trained} == {torch.float32}
    resumed = start(**settings)
    resumed.load(directory)
    again = resumed.update(ragged_batch(seed=2), rollout=1)
    assert (again.loss, again.grad_norm) == (report.loss, report.grad_norm)
    assert same(weights_of(resumed), wanted)
    assert not same(wanted, {name: weight.float() for name, weight in load_file(model / "model.safetensors").items()})


def test_the_first_step_is_that_of_b_alone_and_its_gradient_full_fine_tunings(start: Start, model: Path) -> None:
    """B is zero at first: the model is the base, A has no gradient, and dB = s dW Aᵀ."""
    learner, batch = start(learner=SOME), ragged_batch()
    first = {name: shard.to_local().detach().clone() for name, shard in learner._trained}
    learner.update(batch, rollout=0)
    found, full = gradients_of_first_update(learner), padded_gradients(model, batch)[1]
    for name, gradient in found.items():
        if ".lora_A." in name:
            assert not gradient.any()
        else:
            stem = name.removesuffix(".lora_B.weight")
            wanted = 0.5 * full[f"{stem}.weight"] @ first[f"{stem}.lora_A.weight"].double().T
            torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (3, 1), (4, 2)])
def test_more_ranks_train_and_serve_what_one_does(ranks: int, replicas: int, model: Path, tmp_path: Path) -> None:
    paths = [save_batch(tmp_path / f"batch-{seed}.npz", ragged_batch(seed=seed)) for seed in range(2)]

    def run(name: str, count: int, replicas: int = 1) -> tuple[list[Any], dict[str, Tensor]]:
        commands: list[Command] = [("update", path, step) for step, path in enumerate(paths)]
        commands += [("save", str(tmp_path / name)), ("gathered", str(tmp_path / f"{name}.pt")), ("written",)]
        settings = {"learner": EACH, "lr": 0.01, "micro_batch_tokens": 40, "replicas": replicas}
        reports = run_ranks(tmp_path, model, count, commands, **settings)[:2]
        return reports, torch.load(tmp_path / f"{name}.pt", weights_only=True)["float32"]

    one, weights = run("one", 1)
    many, sharded = run("many", ranks, replicas)
    for report, wanted in zip(many, one, strict=True):
        assert report["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert report["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(sharded[name], weight, rtol=1e-4, atol=1e-4)
    peft = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "many")]
    for name, weight in peft[0].items():
        torch.testing.assert_close(peft[1][name], weight, rtol=1e-4, atol=1e-4)
    again: list[Command] = [("load", str(tmp_path / "many")), ("gathered", str(tmp_path / "again.pt"))]
    run_ranks(tmp_path, model, 1, again, learner=EACH)
    resumed = torch.load(tmp_path / "again.pt", weights_only=True)["float32"]
    for name, weight in sharded.items():
        torch.testing.assert_close(resumed[name], weight, rtol=1e-6, atol=1e-6)  # the product of other rows at a time


def test_a_target_that_no_layer_has_is_refused_by_name(start: Start) -> None:
    with pytest.raises(ModelError, match=r"no linear layer is called query; there are down_proj, .*, v_proj"):
        start(learner={"lora_rank": 2, "lora_targets": ("query", "v_proj")})


@pytest.mark.parametrize(
    "other",
    [SOME | {"lora_rank": 2}, SOME | {"lora_targets": ("q_proj", "k_proj")}, {}],
    ids=["rank", "targets", "full"],
)
def test_a_checkpoint_of_other_adapters_is_refused(other: dict[str, Any], start: Start, tmp_path: Path) -> None:
    saved(start(learner=SOME), tmp_path / "saved")
    learner = start(learner=other)
    with pytest.raises(CheckpointError, match="cannot read trainer state"):
        learner.load(tmp_path / "saved")
