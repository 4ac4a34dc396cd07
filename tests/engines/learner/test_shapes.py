"""Learner ranks at the shapes of real models, without GPU and memory: each phase runs, and ``rlep plan`` knows its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts.shape_run import measure_shape

CONFIGS = Path(__file__).parents[3] / "configs"
ALLOWED = 0.10
"""Of planned over measured bytes."""
SMALL = ("learner.micro_batch_tokens=4096", "learner.reshard_after_forward=true")


def check(shape: str, machine: str, *overrides: str) -> None:
    figures = measure_shape(shape, [CONFIGS / "paper" / "rlep.toml", CONFIGS / "machines" / machine], overrides)
    assert figures["state_bytes"] == pytest.approx(figures["planned_state_bytes"], rel=1e-3), figures
    assert figures["planned_peak_bytes"] == pytest.approx(figures["peak_bytes"], rel=ALLOWED), figures
    assert list(figures["peaks"]) == ["forward", "backward", "optimizer", "score", "publication"]


def test_a_7b_rank_of_eight_takes_what_the_plan_says() -> None:
    check("7B", "8x80gb.toml")


def test_a_7b_rank_with_adapters_on_24_gb_takes_what_the_plan_says() -> None:
    check("7B", "1x24gb-lora.toml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "machine", "overrides"),
    [
        ("1.5B", "1x80gb.toml", []),
        ("1.5B", "8x80gb.toml", ["learner.ranks=16", "generator.count=16", *SMALL]),  # the head needs most
        ("7B", "8x80gb.toml", ["learner.replicas=2", "loss.kl_coef=0.1"]),
        ("7B", "8x80gb.toml", ["learner.unsharded_gradients=true"]),
        ("7B", "8x80gb.toml", ["learner.activation_checkpointing=false", "learner.micro_batch_tokens=4096"]),
        ("7B", "8x80gb.toml", ["loss.high_entropy_fraction=0.2", "loss.entropy_coef=0.01"]),
        ("14B", "2x8x80gb.toml", []),
        ("32B", "8x80gb.toml", ["learner.ranks=16", "generator.count=16", "learner.reshard_after_forward=true"]),
        ("32B", "1x80gb-lora.toml", ["learner.cpu_offload=true", "learner.reshard_after_forward=true"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_other_shapes_ranks_and_settings_too(shape: str, machine: str, overrides: list[str]) -> None:
    check(shape, machine, *overrides)
