"""Host memory and disk of a run, each term worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.config.settings import load_config
from rlep.plan.host import plan_host
from tests.unit.plan.test_plan import MATH_7B, RLEP

MACHINES = Path("configs/machines").absolute()
WEIGHTS = 7_615_616_512
GIB = 2**30


def test_7b_on_eight_gpus_has_213_gib_of_tensors_on_the_host_and_320_gb_on_disk() -> None:
    plan = plan_host(load_config([RLEP, MACHINES / "8x80gb.toml"]), MATH_7B)
    assert plan.kept_bytes == 12 * WEIGHTS  # eight sleeping ranks
    assert plan.saved_bytes == (12 + 2) * WEIGHTS  # trainer/ of all ranks, and model/ in bfloat16 on rank 0
    assert plan.published_bytes == 2 * 2 * WEIGHTS
    assert plan.process_bytes == 8 * 2 * GIB + 8 * 3 * GIB // 2
    assert round((plan.memory_bytes - plan.process_bytes) / GIB) == 213
    assert (plan.checkpoint_bytes, plan.checkpoints) == (14 * WEIGHTS, 3)  # two kept, one being written
    assert round(plan.disk_bytes / 1e9) == 320


def test_ranks_that_never_sleep_keep_nothing_and_weights_over_the_network_take_no_shared_memory() -> None:
    split = load_config([RLEP], ["generator.transfer=nccl", "checkpoint.best=evaluation/aime2024/avg"])
    plan = plan_host(split, MATH_7B)
    assert (plan.kept_bytes, plan.published_bytes, plan.checkpoints) == (0, 0, 4)  # the best one beside them
    assert plan.process_bytes == 4 * 2 * GIB + 4 * 3 * GIB // 2


def test_each_replica_copies_all_of_its_state() -> None:
    plan = plan_host(load_config([RLEP, MACHINES / "8x80gb.toml"], ["learner.replicas=2"]), MATH_7B)
    assert plan.kept_bytes == 2 * 12 * WEIGHTS
    assert plan.saved_bytes == (2 * 12 + 2) * WEIGHTS
    assert plan.checkpoint_bytes == 14 * WEIGHTS  # each weight is written once


def test_a_reference_that_is_reset_is_in_the_checkpoint() -> None:
    plan = plan_host(load_config([RLEP, MACHINES / "8x80gb.toml"], ["loss.kl_coef=0.1", "loss.kl_reset=50"]), MATH_7B)
    assert plan.saved_bytes == plan.checkpoint_bytes == (16 + 2) * WEIGHTS


def test_with_lora_a_checkpoint_is_the_merged_model_and_the_adapter() -> None:
    config = load_config([RLEP, MACHINES / "1x24gb-lora.toml"])
    adapters = MATH_7B.adapter_parameters(32, ("all-linear",))
    plan = plan_host(config, MATH_7B)
    assert plan.checkpoint_bytes == 2 * WEIGHTS + 16 * adapters  # adapter/ in float32, and trainer/
    assert plan.saved_bytes == plan.checkpoint_bytes
    assert plan.kept_bytes == 2 * WEIGHTS + 16 * adapters  # offloaded: frozen weights, adapters, moments, gradients


@pytest.mark.parametrize(("steps", "checkpoints"), [(5, 1), (20, 2), (21, 3), (400, 3)])
def test_a_short_run_writes_fewer_checkpoints_than_it_may_keep(steps: int, checkpoints: int) -> None:
    plan = plan_host(load_config([RLEP], [f"run.steps={steps}"]), MATH_7B)  # every 10 steps, and the last
    assert plan.checkpoints == checkpoints


def test_a_command_without_a_learner_writes_no_checkpoint() -> None:
    plan = plan_host(load_config([RLEP, MACHINES / "8x80gb.toml"]), MATH_7B, learns=False)
    assert (plan.memory_bytes, plan.disk_bytes) == (8 * 2 * GIB, 0)
