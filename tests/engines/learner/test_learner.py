"""One rank: gradients of the padded reference, AdamW's own weights, guards, resume, and what it hands to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlep.algorithms.loss_values import high_entropy_mask
from rlep.algorithms.packing import take
from rlep.core.errors import ModelError, UpdateError
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.update_cost import peak_flops
from tests.engines.learner.learner_cases import (
    padded_gradients,
    padded_logprobs,
    ragged_batch,
    relative_error,
    with_near_old_logprobs,
    with_observations,
    write_tiny_model,
)
from tests.engines.learner.learner_process import gradients_of_first_update, same, weights_of

Start = Callable[..., LearnerRank]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "mistral-window"])
def test_score_and_gradients_are_those_of_the_padded_reference(architecture: str, start: Start, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model", architecture)
    learner = start(directory, micro_batch_tokens=64)
    batch = ragged_batch()
    scored = learner.score(batch)
    reference = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        np.testing.assert_allclose(scored, torch.cat(padded_logprobs(reference, batch)[0]), atol=1e-5)
    batch = with_near_old_logprobs(batch, scored)
    report = learner.update(batch, rollout=0)
    loss, gradients = padded_gradients(directory, batch)
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    assert report.sources["fresh/clip_fraction_low"] > 0
    assert report.sources["fresh/clip_fraction_high"] > 0


def test_at_the_rollouts_temperature_score_and_gradients_are_those_of_the_padded_reference(
    start: Start, model: Path
) -> None:
    learner = start(rollout={"temperature": 0.6}, loss={"temperature": "rollout", "entropy_coef": 0.3})
    batch = ragged_batch()
    scored = learner.score(batch)
    reference = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        np.testing.assert_allclose(scored, torch.cat(padded_logprobs(reference, batch, 0.6)[0]), atol=1e-5)
    batch = with_near_old_logprobs(batch, scored)
    report = learner.update(batch, rollout=0)
    loss, gradients = padded_gradients(model, batch, entropy_coef=0.3, temperature=0.6)
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6


def test_on_policy_every_ratio_and_importance_weight_is_1_at_the_rollouts_temperature(start: Start) -> None:
    correction = {"weight": "token", "cap": 2.0}
    learner = start(rollout={"temperature": 0.6}, loss={"temperature": "rollout", "correction": correction})
    batch = ragged_batch()
    sampled = learner.score(batch)  # as a generator would return them, after its temperature
    batch = replace(batch, old_logprobs=sampled, behaviour_logprobs=sampled)
    report = learner.update(batch, rollout=0)
    assert report.sources["fresh/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    # With ratios and weights of 1 the loss is the mean over tokens of minus the advantage.
    lengths = np.where(batch.trained, batch.sampled_lengths, 0)
    assert report.loss == pytest.approx(-float((lengths * batch.advantages).sum() / lengths.sum()), abs=1e-6)


def test_fine_tuning_is_at_temperature_1_whatever_the_loss_is_at(start: Start, model: Path) -> None:
    learner = start(rollout={"temperature": 0.6}, loss={"temperature": "rollout"})
    batch = ragged_batch()
    assert learner.sft_update(batch, rollout=0).loss == pytest.approx(
        padded_gradients(model, batch, sft=True)[0], rel=1e-6
    )


def test_fine_tuning_and_entropy_are_over_sampled_tokens(start: Start, model: Path) -> None:
    batch = with_observations(ragged_batch())
    learner = start(micro_batch_tokens=40)
    loss, gradients = padded_gradients(model, batch, sft=True)
    assert learner.sft_update(batch, rollout=0).loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    learner = start(loss={"entropy_coef": 0.3}, micro_batch_tokens=40)
    loss, gradients = padded_gradients(model, batch, entropy_coef=0.3)
    assert learner.update(batch, rollout=0).loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 100_000])
@pytest.mark.parametrize(
    "policy",
    [{}, {"activation_checkpointing": True}, {"reshard_after_forward": True}],
    ids=["plain", "activation-checkpointing", "reshard"],
)
def test_neither_micro_batching_nor_memory_options_change_the_gradient(
    policy: dict[str, bool], micro_batch_tokens: int, start: Start, model: Path
) -> None:
    learner = start(learner=policy, micro_batch_tokens=micro_batch_tokens)
    batch = ragged_batch()
    learner.update(batch, rollout=0)
    assert relative_error(gradients_of_first_update(learner), padded_gradients(model, batch)[1]) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_one_rank_gradients_add_up_to_the_bit_in_shards_or_before(
    dtype: Literal["float32", "bfloat16"], start: Start
) -> None:
    batch, found = ragged_batch(), []
    for unsharded in (False, True):
        policy = {"dtype": dtype, "unsharded_gradients": unsharded}
        learner = start(learner=policy, micro_batch_tokens=100)
        in_shards: list[bool] = []

        def look(*_: object, learner: LearnerRank = learner, in_shards: list[bool] = in_shards) -> None:
            in_shards.append(all(shard.grad is not None for _, shard in learner._trained))

        learner._policy.register_forward_pre_hook(look)
        learner.update(batch, rollout=0)
        found.append(gradients_of_first_update(learner))
        assert in_shards == [False, not unsharded]  # when each micro-batch begins
    assert same(*found)


def test_the_entropy_bonus_reaches_the_gradient(start: Start, model: Path) -> None:
    learner = start(loss={"entropy_coef": 0.3})
    batch = ragged_batch()
    report = learner.update(batch, rollout=0)
    loss, gradients = padded_gradients(model, batch, entropy_coef=0.3)
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    assert report.sources["fresh/entropy"] > 0


def test_kl_and_entropy_act_on_groups_that_the_policys_loss_is_without(start: Start, model: Path) -> None:
    # Group 1 is constant: its sequences are in the entropy term and its token count, and nowhere else.
    batch = ragged_batch()
    batch = replace(batch, trained=batch.trained & (batch.groups != 1), regularised=batch.trained)
    learner = start(loss={"entropy_coef": 0.3}, micro_batch_tokens=40)
    report = learner.update(batch, rollout=0)
    loss, gradients = padded_gradients(model, batch, entropy_coef=0.3)
    assert report.loss == pytest.approx(loss, rel=1e-5)  # a difference of larger sums in float32
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    trained = batch.sampled_lengths[batch.trained].sum()
    assert report.sources["fresh/tokens"] + report.sources["replay/tokens"] == trained


def test_an_update_of_constant_groups_alone_is_one_of_kl_and_entropy(start: Start) -> None:
    learner = start(loss={"entropy_coef": 0.3})
    batch = ragged_batch()
    report = learner.update(replace(batch, trained=np.zeros(12, np.bool_), regularised=batch.trained), rollout=0)
    assert (report.skipped, learner._optimizer.steps) == ("", 1)
    assert report.grad_norm > 0


def test_the_entropy_of_each_source_is_told_without_being_in_the_loss(start: Start, model: Path) -> None:
    batch = ragged_batch()
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    with torch.no_grad():
        entropies = padded_logprobs(reference, batch)[1]
    report = start(micro_batch_tokens=40).update(batch, rollout=0)
    for source, replayed in (("fresh", False), ("replay", True)):
        tokens = torch.cat([entropies[row] for row in np.flatnonzero(batch.trained & (batch.replayed == replayed))])
        assert report.sources[f"{source}/entropy"] == pytest.approx(float(tokens.mean()), rel=1e-5)


def test_only_the_tokens_of_highest_entropy_are_trained_when_asked(start: Start, model: Path) -> None:
    batch = replace(ragged_batch(truncated=False), advantages=np.ones(12, dtype=np.float32))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    with torch.no_grad():
        logprobs, entropies = (torch.cat(values).numpy() for values in padded_logprobs(reference, batch))
    assert batch.old_logprobs is not None
    chosen = high_entropy_mask(entropies, np.ones(len(entropies)), 0.2)
    ratio = np.exp(logprobs - batch.old_logprobs)
    wanted = -np.minimum(ratio, ratio.clip(0.8, 1.28))[chosen].sum() / len(ratio)
    learner = start(loss={"high_entropy_fraction": 0.2}, micro_batch_tokens=40)
    assert learner.update(batch, rollout=0).loss == pytest.approx(wanted, rel=1e-5)


def test_the_distance_to_the_reference_policy_starts_at_zero_and_grows(start: Start, model: Path) -> None:
    learner = start(loss={"kl_coef": 0.1})
    batch = ragged_batch()
    first, second = learner.update(batch, rollout=0), learner.update(batch, rollout=0)
    assert first.sources["fresh/reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert second.sources["fresh/reference_kl"] > 1e-4


def test_a_reset_makes_the_policy_before_a_step_s_first_update_the_reference(start: Start, tmp_path: Path) -> None:
    batch, options = ragged_batch(), {"loss": {"kl_coef": 0.1, "kl_reset": 2}}
    learner = start(**options)

    def distances(learner: LearnerRank, *rollouts: int) -> list[float]:
        return [learner.update(batch, rollout=rollout).sources["fresh/reference_kl"] for rollout in rollouts]

    before = distances(learner, 0, 1, 1, 2)
    assert before[0] == pytest.approx(0.0, abs=1e-9)
    assert before[1] > 1e-4
    assert before[2] > before[1]
    assert before[3] == pytest.approx(0.0, abs=1e-9), "the reference is the policy that begins step 2"
    learner.save(tmp_path / "kept")
    assert learner.written(60)
    rest = distances(learner, 2, 3, 4, 4)
    assert rest[0] > 1e-4, "the second update of a step resets nothing"
    assert rest[2] == pytest.approx(0.0, abs=1e-9)
    resumed = start(**options)
    resumed.load(tmp_path / "kept")
    assert distances(resumed, 3, 4, 4)[0] == rest[0], "the reference is that of the checkpoint"


def test_a_checkpoint_of_a_run_that_reset_nothing_is_continued_with_the_base_model_as_reference(
    start: Start, tmp_path: Path
) -> None:
    learner, batch = start(loss={"kl_coef": 0.1}), ragged_batch()
    learner.update(batch, rollout=0)
    learner.save(tmp_path / "kept")
    assert learner.written(60)
    wanted = learner.update(batch, rollout=1)
    resumed = start(loss={"kl_coef": 0.1, "kl_reset": 2})
    resumed.load(tmp_path / "kept")
    found = resumed.update(batch, rollout=1)
    assert (found.loss, found.grad_norm, found.sources) == (wanted.loss, wanted.grad_norm, wanted.sources)


def test_a_run_that_resets_no_more_keeps_its_last_reference_in_all_later_checkpoints(
    start: Start, tmp_path: Path
) -> None:
    batch, learner = ragged_batch(), start(loss={"kl_coef": 0.1, "kl_reset": 1})
    for rollout in (0, 1):
        learner.update(batch, rollout=rollout)
    learner.save(tmp_path / "reset")
    assert learner.written(60)
    wanted = learner.update(batch, rollout=1).sources["fresh/reference_kl"]  # of one update since the reset
    for kept in ("reset", "later"):
        resumed = start(loss={"kl_coef": 0.1})
        resumed.load(tmp_path / kept)
        if kept == "reset":
            resumed.save(tmp_path / "later")
            assert resumed.written(60)
        assert resumed.update(batch, rollout=2).sources["fresh/reference_kl"] == wanted > 0


def test_a_reset_that_was_due_in_a_step_without_an_update_is_made_up_for_in_the_next_one(
    start: Start, tmp_path: Path
) -> None:
    batch, options = ragged_batch(), {"loss": {"kl_coef": 0.1, "kl_reset": 2}}
    learner = start(**options)
    learner.update(batch, rollout=1)
    learner.save(tmp_path / "kept")  # step 2 has no mini-batch
    assert learner.written(60)
    resumed = start(**options)
    resumed.load(tmp_path / "kept")
    for runner in (learner, resumed):
        distances = [runner.update(batch, rollout=3).sources["fresh/reference_kl"] for _ in range(2)]
        assert distances[0] == pytest.approx(0.0, abs=1e-9) != distances[1]


def test_weights_follow_torch_adamw_on_the_reference_gradients(start: Start, model: Path) -> None:
    batches = [ragged_batch(seed=seed) for seed in range(3)]
    learner = start(update={"lr": 1e-3, "warmup": 2, "clip_norm": 0.5})
    reports = [learner.update(batch, rollout=step) for step, batch in enumerate(batches)]
    assert [report.learning_rate for report in reports] == [0.0005, 0.001, 0.001]  # factors 1/2, 2/2, then 1
    assert all(report.grad_norm > 0.5 for report in reports)
    reference = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    adamw = torch.optim.AdamW(reference.parameters(), lr=0.0, weight_decay=0.1)
    for batch, report in zip(batches, reports, strict=True):
        reference.save_pretrained(model.parent / "reference")
        gradients = padded_gradients(model.parent / "reference", batch, dtype=torch.float32)[1]
        for name, parameter in reference.named_parameters():
            parameter.grad = gradients[name]
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        adamw.param_groups[0]["lr"] = report.learning_rate
        adamw.step()
    for name, weight in weights_of(learner).items():
        torch.testing.assert_close(weight, reference.get_parameter(name).detach(), rtol=1e-4, atol=1e-5)


def test_updates_of_one_rollout_share_its_rate_unless_updates_are_counted(start: Start) -> None:
    batch = ragged_batch()
    by_rollout = start(update={"lr": 1.0, "warmup": 4})
    assert [by_rollout.update(batch, rollout=step).learning_rate for step in (0, 0, 1)] == [0.25, 0.25, 0.5]
    by_update = start(update={"lr": 1.0, "warmup": 4, "unit": "updates"})
    assert [by_update.update(batch, rollout=step).learning_rate for step in (0, 0, 1)] == [0.25, 0.5, 0.75]


def test_an_update_without_trained_tokens_is_skipped_and_leaves_everything_alone(start: Start) -> None:
    learner = start()
    batch = ragged_batch()
    before = weights_of(learner)
    report = learner.update(replace(batch, trained=np.zeros(12, dtype=np.bool_)), rollout=0)
    assert report.skipped == "no tokens"
    assert same(weights_of(learner), before)
    assert learner._optimizer.steps == 0


def test_a_non_finite_gradient_never_reaches_weights_or_moments(start: Start) -> None:
    batch = ragged_batch()
    undisturbed = start()
    undisturbed.update(batch, rollout=0)
    undisturbed.update(batch, rollout=1)
    wanted = weights_of(undisturbed)
    learner = start()
    learner.update(batch, rollout=0)
    broken = replace(batch, advantages=np.full(12, np.nan, dtype=np.float32))
    report = learner.update(broken, rollout=1)
    assert report.skipped == "non-finite gradient"
    assert not np.isfinite(report.grad_norm)
    learner.update(batch, rollout=1)
    assert same(weights_of(learner), wanted)


def test_an_update_needs_old_log_probs(start: Start) -> None:
    with pytest.raises(UpdateError, match="12 sequences without old log-probs"):
        start().update(replace(ragged_batch(), old_logprobs=None), rollout=0)


def test_a_learner_that_cannot_start_leaves_the_process_fit_for_another(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a causal language model"):
        start(tmp_path / "nowhere")
    assert len(start().score(ragged_batch())) == ragged_batch().sampled_lengths.sum()


def test_arrays_that_cannot_be_written_are_taken(start: Start) -> None:
    # Arrays out of an object store are read-only; torch warns about such, and warnings are errors here.
    batch = ragged_batch()
    for array in (
        batch.tokens,
        batch.offsets,
        batch.prompt_lengths,
        batch.advantages,
        batch.trained,
        batch.old_logprobs,
    ):
        assert array is not None
        array.flags.writeable = False
    learner = start()
    learner.score(batch)
    assert learner.update(batch, rollout=0).skipped == ""


def test_supervised_updates_follow_the_mean_cross_entropy(start: Start, model: Path) -> None:
    learner = start(micro_batch_tokens=50)
    batch = ragged_batch()
    report = learner.sft_update(batch, rollout=0)
    loss, gradients = padded_gradients(model, batch, sft=True)
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6


def test_model_flops_by_hand(start: Start) -> None:
    batch = take(ragged_batch(), [0])
    report = start().update(batch, rollout=0)
    tokens = len(batch.tokens)
    # Tied embedding 37·32; per layer q, o 32·32, k, v 32·16, biases 32+16+16, feed-forward 3·32·48, norms 2·32; last norm.
    weights = 37 * 32 + 2 * (2 * 1024 + 2 * 512 + 64 + 4608 + 64) + 32
    assert report.cost.model_flops == 6 * weights * tokens + 6 * 2 * 32 * tokens**2
    adapters = start(learner={"lora_rank": 2, "lora_alpha": 4.0}).update(batch, rollout=0)
    assert adapters.cost.model_flops == 4 * weights * tokens + 6 * 2 * 32 * tokens**2
    assert report.cost.tokens == tokens
    assert start().update(take(ragged_batch(), [0, 3]), rollout=0).cost.tokens == tokens  # sequence 3 is not trained
    assert report.cost.seconds > 0
    assert report.cost.peak_flops == 0  # nobody knows a CPU's
    assert report.cost.peak_memory_bytes > 50 * 2**20  # torch alone is larger


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0),  # less than the whole device's, and unknown
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA T4", 0),
    ],
)
def test_the_peak_is_that_of_the_device_by_its_name(
    name: str, teraflops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda", 0), "bfloat16", 2) == 2 * teraflops * 1e12
