"""Values that follow from several keys, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rlep.config.replay import ReplayConfig
from rlep.config.settings import parse_config
from rlep.core.errors import ConfigError
from rlep.core.types import Sampling
from tests.unit.driver.driver_values import TIS, config_of


def rates(steps: int, **update: Any) -> list[float]:
    """Learning rate of every rollout or update of a run of 4 prompts a step, 2 an update."""
    config = config_of(run={"steps": steps}, update={"lr": 1.0, **update})
    return [config.update.lr_at(index, config.schedule_end) for index in range(config.schedule_end)]


def test_the_papers_warm_up_takes_ten_rollouts() -> None:
    found = rates(501)
    assert [found[index] for index in (0, 4, 9, 10, 500)] == [0.1, 0.5, 1.0, 1.0, 1.0]


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
    with pytest.raises(ConfigError, match=r'"cosine" begins after update\.warmup = 10, and the run has 4 rollouts'):
        config_of(update={"schedule": "cosine"})


def test_replay_schedules_by_hand() -> None:
    assert [ReplayConfig(count=2).count_at(step, 1) for step in (0, 5, 10**6)] == [2, 2, 2]
    linear = ReplayConfig(count=4, schedule="linear")
    assert [linear.count_at(step, 8) for step in range(10)] == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]


def test_rollout_evaluation_and_collection_draw_their_own_way_and_end_alike() -> None:
    ends = {"max_tokens": 64, "stop": ["</answer>"], "stop_tokens": [7]}
    config = config_of(
        rollout={"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, **ends},
        evaluation={"temperature": 0, "samples": 1, "final_samples": None},
        collection={"top_k": 5},
    )
    stops: dict[str, Any] = {"stop": ("</answer>",), "stop_tokens": (7,)}
    assert config.sampling(config.rollout) == Sampling(0.6, 0.9, 20, 64, 0.1, 1.1, **stops)
    assert config.sampling(config.evaluation) == Sampling(0.0, 1.0, 0, 64, **stops)
    assert config.sampling(config.collection) == Sampling(0.7, 0.95, 5, 64, **stops)
    assert config_of().sampling(config_of().rollout) == Sampling(max_tokens=config_of().rollout.max_tokens)


@pytest.mark.parametrize(
    ("loss", "temperature", "mode"), [({}, 1.0, "raw"), ({"temperature": "rollout"}, 0.6, "processed")]
)
def test_the_learner_and_the_generators_take_log_probs_at_one_temperature(
    loss: dict[str, Any], temperature: float, mode: str
) -> None:
    config = config_of(rollout={"temperature": 0.6}, loss=loss)
    assert (config.loss_temperature, config.logprobs_mode) == (temperature, mode)


@pytest.mark.parametrize(
    ("role", "gpus", "dtype", "computes"),
    [
        ("learner", 0, "auto", "float32"),
        ("learner", 1, "auto", "bfloat16"),
        ("generator", 1, "auto", "bfloat16"),
        ("generator", 0, "float16", "float16"),
    ],
)
def test_a_role_computes_in_half_precision_on_gpus_alone(role: str, gpus: int, dtype: str, computes: str) -> None:
    config = config_of(**{role: {"gpus": gpus, "dtype": dtype}})
    assert getattr(config, role).compute_dtype == computes


@pytest.mark.parametrize(("stream", "prompts", "kept"), [(False, 2, False), (True, 4, False), (True, 2, True)], ids=str)
def test_start_weights_are_kept_only_where_a_step_scores_after_its_first_update(
    stream: bool, prompts: int, kept: bool
) -> None:
    assert config_of(update={"stream": stream, "prompts": prompts}).keeps_start_weights is kept  # 4 prompts a step


@pytest.mark.parametrize(
    ("staleness", "partial", "effect"), [(0, "keep", "wait"), (1, "keep", "keep"), (1, "abort", "abort")]
)
def test_new_weights_wait_for_responses_unless_staleness_is_allowed(staleness: int, partial: str, effect: str) -> None:
    rollout = {"max_staleness": staleness, "partial": partial}
    assert config_of(rollout=rollout, loss=TIS).on_update == effect


def test_the_longest_sequence_is_a_prompt_and_a_response() -> None:
    assert parse_config({"data": {"max_prompt_tokens": 1024}, "rollout": {"max_tokens": 3072}}).context == 4096


def test_values_of_a_copy_are_not_checked() -> None:
    config = config_of()
    changed = config.with_values(learner={"ranks": 3, "replicas": 2}, update={"lr": 0.0})
    assert (changed.learner.ranks, changed.learner.replicas, changed.update.lr) == (3, 2, 0.0)
    assert (config.learner.ranks, config.update.lr) == (1, 1e-6)


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
    assert (config.generator_threads, config.learner_threads) == threads
