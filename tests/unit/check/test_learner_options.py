"""From the config's keys to what a learner rank is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlep.check.engine_options import learner_options, sampler_options
from rlep.check.fit_checks import memory_advice
from rlep.config.settings import parse_config
from rlep.core.errors import ConfigError
from rlep.engines.learner.options import LoraOptions
from tests.unit.driver.driver_values import config_of


def rates(steps: int, **update: Any) -> list[float]:
    """Learning rate of every rollout or update of a run of 4 prompts a step, 2 an update."""
    options = learner_options(config_of(run={"steps": steps}, update={"lr": 1.0, **update})).optimizer
    return [options.lr_at(index) for index in range(options.total)]


def test_a_linear_decay_ends_after_the_last_rollout() -> None:
    # Warm-up 1/2, 2/2; then four equal steps of 0.9 / 4 from 1, the fifth of which would be the floor.
    wanted = [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]
    assert rates(6, warmup=2, schedule="linear", floor=0.1) == pytest.approx(wanted)


def test_counted_in_updates_a_cosine_ends_after_the_last_update() -> None:
    # 2 steps of 2 updates; after the warm-up of one: half a cosine over three, 1, 3/4, 1/4, and no update at 0.
    assert rates(2, warmup=1, schedule="cosine", unit="updates") == pytest.approx([1.0, 1.0, 0.75, 0.25])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("unit", ["rollouts", "updates"])
def test_no_step_of_a_decay_trains_at_a_rate_of_0(schedule: str, unit: str) -> None:
    for warmup in (0, 3):
        assert min(rates(20, warmup=warmup, schedule=schedule, unit=unit)) > 0.001
    assert rates(1, warmup=0, schedule=schedule)[0] == 1.0


def test_a_warm_up_longer_than_the_run_leaves_no_room_for_a_decay() -> None:
    with pytest.raises(ConfigError, match="total 4, warmup 10 rollouts"):
        learner_options(config_of(update={"schedule": "cosine"}))


@pytest.mark.parametrize(
    "key", ["compile", "reshard_after_forward", "unsharded_gradients", "activation_checkpointing", "cpu_offload"]
)
def test_each_memory_and_speed_switch_reaches_the_policy(key: str) -> None:
    for wanted in (True, False):
        options = learner_options(config_of(learner={key: wanted, "gpus": 1}))
        assert getattr(options.policy, key) is wanted
        assert (options.device, options.policy.dtype) == ("cuda", "bfloat16")


def test_corrections_of_replays_reach_the_loss() -> None:
    loss = learner_options(config_of(replay={"old_logprobs": "unit", "shaping": 0.1, "weight": 0.5})).loss
    assert (loss.replay_shaping, loss.replay_weight, loss.replay_is_cap) == (0.1, 0.5, None)
    assert learner_options(config_of(replay={"is_cap": 2.0})).loss.replay_is_cap == 2.0


def test_a_rank_of_zero_trains_all_weights_and_another_the_adapters_of_the_run_s_seed() -> None:
    assert learner_options(config_of()).policy.lora is None
    options = learner_options(config_of(learner={"lora_rank": 8, "lora_targets": ["q_proj"]}, run={"seed": 3}))
    assert options.policy.lora == LoraOptions(8, 32.0, ("q_proj",), 3)
    assert options.policy.lora.scale == 4.0


@pytest.mark.parametrize(("stream", "prompts", "kept"), [(False, 2, False), (True, 4, False), (True, 2, True)], ids=str)
def test_start_weights_are_kept_only_where_a_step_scores_after_its_first_update(
    stream: bool, prompts: int, kept: bool
) -> None:
    options = learner_options(config_of(update={"stream": stream, "prompts": prompts}))  # 4 prompts a step
    assert options.keep_start_weights is kept


@pytest.mark.parametrize(("gpus", "longest"), [(0, 0), (1, 4096)])
def test_the_largest_update_is_rehearsed_on_gpus(gpus: int, longest: int) -> None:
    config = parse_config(
        {"learner": {"gpus": gpus}, "data": {"max_prompt_tokens": 1024}, "rollout": {"max_tokens": 3072}}
    )
    assert learner_options(config).longest_sequence == longest


def test_a_lack_of_memory_comes_with_the_plan_and_the_settings_that_lower_it() -> None:
    model = {"path": str(Path(__file__).parents[3] / "rlep" / "quickstart" / "model")}
    advice = memory_advice(parse_config({"model": model, "learner": {"gpus": 1}}))
    # 109,888 parameters: 12 and 4 bytes each
    assert "weights and Adam 1.3 MiB, gradients 429.2 KiB" in advice
    assert "--set learner.activation_checkpointing=true, --set learner.micro_batch_tokens=4096" in advice
    assert "--set learner.ranks=2. `rlep plan --gpu-memory GIB`" in advice


@pytest.mark.parametrize(
    ("placement", "width", "generator", "learner", "threads"),
    [
        ("split", 1, 3, 2, (3, 2)),
        ("colocated", 1, 3, 2, (3, 3)),
        ("colocated", 1, 1, 2, (2, 2)),
        ("colocated", 2, 6, 2, (6, 3)),
        ("colocated", 2, 1, 2, (4, 2)),
    ],
)
def test_roles_that_take_turns_have_each_others_cores(
    placement: str, width: int, generator: int, learner: int, threads: tuple[int, int]
) -> None:
    config = config_of(
        cluster={"placement": placement},
        generator={"cpus": generator, "tensor_parallel": width},
        learner={"cpus": learner, "ranks": width},
    )
    assert (sampler_options(config).threads, learner_options(config).threads) == threads
