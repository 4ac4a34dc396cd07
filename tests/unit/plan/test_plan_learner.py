"""A learner rank's memory, each term worked out by hand; ``benchmarks/memory.py`` measures it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlep.config.schema import Config
from rlep.config.settings import load_config, parse_config
from rlep.plan.learner import layer_activation_bytes, plan_learner
from rlep.plan.model_shape import ModelShape
from tests.unit.plan.test_plan import MATH_7B, RLEP

TINY = ModelShape(2, 4, 8, 10, 2, 1, 2, tied=True, attention_bias=False)
MIB = 2**20


def config_of(learner: dict[str, Any] | None = None, **tree: Any) -> Config:
    return parse_config(
        {
            "learner": {"micro_batch_tokens": 100} | (learner or {}),
            "data": {"max_prompt_tokens": 30},
            "rollout": {"max_tokens": 70},
            "reward": {"overlong_buffer": 0},
            **tree,
        }
    )


def test_a_rank_of_the_rlep_preset() -> None:
    plan = plan_learner(load_config([RLEP]), MATH_7B)
    assert plan.state_bytes == 22_846_849_536  # 12 bytes x 7,615,616,512 parameters / 4 ranks
    assert plan.gradient_bytes == 7_615_616_512
    assert plan.copy_bytes == 15_231_233_024  # bfloat16
    assert plan.reference_bytes == 0
    # A layer keeps 8 x 3584 of norms, 2 x (3584 + 512) of attention, 4 x 18944: 112,640 values a token. With checkpointing 28
    # inputs of 3584; the peak is in the last layer, which is computed again: 16384 tokens x 2 bytes
    assert plan.activation_bytes == 16384 * 2 * (100_352 + 112_640)
    terms = (plan.state_bytes, plan.gradient_bytes, plan.copy_bytes, plan.activation_bytes, plan.work_bytes)
    assert plan.peak_bytes == sum(terms)


@pytest.mark.parametrize(
    ("width", "flash", "values"),
    [
        (4, False, 2 * 3 * 4 + 5 * 4 + 4 * 8),  # hidden 4, queries 4, keys 2, feed-forward 8
        (2, False, 2 * 4 * 4 + 5 * 4 + 4 * 8),
        (2, True, 2 * 4 * 4 + 2 * (4 + 2) + 4 * 8),
    ],
)
def test_what_a_layer_keeps_of_a_token(width: int, flash: bool, values: int) -> None:
    assert layer_activation_bytes(TINY, width, flash=flash) == values * width


def test_the_peak_is_in_the_output_head_where_all_layers_keep_their_values() -> None:
    plan = plan_learner(config_of(), TINY)
    # 100 tokens of float32: two layers of 76 values; three times 4 of the last norm, twice 2 of rotations
    assert plan.activation_bytes == 100 * 4 * (2 * 76 + 3 * 4 + 2 * 2)
    # 100 x 10 probabilities, three chunks of as many logits, the output embedding's gradient
    assert plan.work_bytes == 4 * (1000 + 3 * 1000 + 40)


def test_with_checkpointing_it_is_in_the_layer_that_is_computed_again() -> None:
    plan = plan_learner(config_of({"activation_checkpointing": True}), TINY)
    assert plan.activation_bytes == 100 * 4 * (2 * 4 + 76)  # both layers' inputs, and one layer
    layer = 4 * (2 * 4 + 2 * 2) + 3 * 4 * 8 + 2 * 4  # attention, feed-forward, norms: 152 weights
    assert TINY.layer_parameters == layer
    # 100 x 10 probabilities; the embedding's gradient 10 x 4; 100 x (2 x 8 + 2 x 4) flowing; a layer's gradient, its copy for
    # the reduction and what comes of it
    assert plan.work_bytes == 4 * (1000 + 40 + 2400 + 3 * layer)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shares_fall_with_the_ranks_and_unsharded_gradients_do_not(ranks: int) -> None:
    weights = 4 * TINY.parameters  # 344 x 4 bytes
    plan = plan_learner(config_of({"ranks": ranks}), TINY)
    assert (plan.state_bytes, plan.gradient_bytes) == (3 * weights // ranks, weights // ranks)
    assert plan.asleep_bytes == 3 * weights // ranks
    unsharded = plan_learner(config_of({"ranks": ranks, "unsharded_gradients": True}), TINY)
    assert unsharded.gradient_bytes == weights
    assert unsharded.peak_bytes - plan.peak_bytes == weights - weights // ranks


def test_each_replica_of_the_model_has_its_own_shards() -> None:
    eight = [*(f"learner.{key}" for key in ("ranks=8", "replicas=2")), "loss.kl_coef=0.1"]
    replicated = plan_learner(load_config([RLEP], eight), MATH_7B)
    assert replicated == plan_learner(load_config([RLEP], ["learner.ranks=4", "loss.kl_coef=0.1"]), MATH_7B)


@pytest.mark.parametrize("width", [4, 2])
def test_adapters_leave_the_weights_without_gradients_and_moments(width: int) -> None:
    # Rank 2. Per layer: hidden 4 with queries and output 4, keys and values 2, feed-forward 8 three times.
    adapters = 2 * 2 * (2 * (4 + 4) + 2 * (4 + 2) + 3 * (4 + 8))
    dtype = {4: "float32", 2: "bfloat16"}[width]
    learner = {"ranks": 2, "lora_rank": 2, "dtype": dtype}
    plan = plan_learner(config_of(learner, loss={"kl_coef": 0.1}), TINY)
    assert plan.gradient_bytes == 4 * adapters // 2
    assert plan.state_bytes == width * TINY.parameters // 2 + 12 * adapters // 2
    assert plan.asleep_bytes == plan.state_bytes
    assert plan.copy_bytes == width * (TINY.parameters + adapters)
    assert plan.reference_bytes == 0  # the frozen weights are the reference policy
    some = config_of({"lora_rank": 2, "lora_targets": ["q_proj", "down_proj"]})
    assert plan_learner(some, TINY).gradient_bytes == 4 * 2 * 2 * ((4 + 4) + (8 + 4))


def test_a_kl_holds_the_base_model_a_second_time() -> None:
    plan = plan_learner(config_of(loss={"kl_coef": 0.1}), TINY)
    assert plan.reference_bytes == 8 * TINY.parameters  # one rank: fp32 weights and their fp32 copy


@pytest.mark.parametrize("rank", [0, 2])
def test_a_teacher_of_another_shape_is_held_instead_with_adapters_too(rank: int) -> None:
    # Embedding of 10 tokens, tied, and a norm; a layer: q and o of 8x8, k and v of 8x2, an MLP of 3 x 8x16, two norms.
    teacher = ModelShape(3, 8, 16, 10, 4, 1, 2, tied=True, attention_bias=False)
    weights = 10 * 8 + 8 + 3 * (2 * 64 + 2 * 16 + 3 * 128 + 16)
    assert teacher.parameters == weights == 1768
    config = config_of({"ranks": 2, "lora_rank": rank, "dtype": "bfloat16"}, loss={"kl_coef": 1, "teacher": "t"})
    plan, own = (plan_learner(config, replace(TINY, teacher=other)) for other in (teacher, None))
    assert plan.reference_bytes == 2 * weights // 2 + 2 * weights  # a share in the compute type, and the whole
    assert plan.asleep_bytes - own.asleep_bytes == weights - (0 if rank else TINY.parameters)


def test_a_wide_teacher_s_layer_is_the_peak_beside_a_small_policy() -> None:
    # 100 tokens: four hidden states and twice the MLP's width in float32; kept are two layers' activations of the policy.
    teacher = ModelShape(3, 8, 10_000, 10, 4, 1, 2, tied=True, attention_bias=False)
    config = config_of(loss={"kl_coef": 1, "teacher": "t"})
    plan = plan_learner(config, replace(TINY, teacher=teacher))
    assert plan.work_bytes == 4 * 100 * 10 + 4 * 100 * (4 * 8 + 2 * 10_000)  # its probabilities are kept


@pytest.mark.parametrize(("ranks", "layers"), [(1, 1), (2, 3)])
def test_resharding_gathers_layer_by_layer(ranks: int, layers: int) -> None:
    plan = plan_learner(config_of({"ranks": ranks, "reshard_after_forward": True}), TINY)
    assert plan.copy_bytes == 4 * (10 * 4 + 4 + layers * 152)  # alone; else two, and the buffer of the next


@pytest.mark.parametrize(("prompts", "kept"), [(64, 4), (512, 0)])
def test_streaming_keeps_the_first_weights_where_a_step_has_several_updates(prompts: int, kept: int) -> None:
    config = parse_config({"update": {"stream": True, "prompts": prompts}, "rollout": {"prompts": 512}})
    assert plan_learner(config, MATH_7B).state_bytes == (12 + kept) * MATH_7B.parameters


def test_cpu_offload_moves_the_shares_to_the_host() -> None:
    assert plan_learner(config_of({"gpus": 1}), TINY).host_bytes == 0
    assert plan_learner(config_of({"gpus": 1, "cpu_offload": True}), TINY).host_bytes == 16 * TINY.parameters
    on_cpu = plan_learner(config_of(), TINY)
    assert on_cpu.host_bytes == on_cpu.peak_bytes


CHUNK = 256 * 2**20


@pytest.mark.parametrize(
    ("vocabulary", "entropy_coef", "nbytes"),
    [
        (1_000_000, 0.0, 3 * CHUNK),  # forward: logits, probabilities, and a logarithm of the sum
        (2_000_000, 0.0, 4 * 128_000_000 + CHUNK + CHUNK // 2),  # the sum, and a chunk in float32 and bfloat16
        (2_000_000, 0.1, 4 * 128_000_000 + 4 * CHUNK + CHUNK // 2),  # its logits too, and both of the one before
        (10_000_000, 0.0, 4 * 640_000_000 + 2 * 640_000_000),  # the sum, and what it is rounded to
    ],
)
def test_on_a_gpu_the_head_holds_three_chunks_or_its_gradient_s_sum_and_what_is_beside_it(
    vocabulary: int, entropy_coef: float, nbytes: int
) -> None:
    wide = ModelShape(1, 64, 64, vocabulary, 1, 1, 64, tied=True, attention_bias=False)
    keys = ["learner.gpus=1", "learner.ranks=4", "learner.activation_checkpointing=true"]
    config = load_config([], [*keys, f"loss.entropy_coef={entropy_coef}"])
    assert plan_learner(config, wide).work_bytes == nbytes
