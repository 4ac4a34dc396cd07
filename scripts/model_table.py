"""The table of models of the hub with the shipped machine that suits each; ``docs/reference/configuration.md`` shows it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.parts.hub_models import MODELS
from rlep.config.settings import load_config
from rlep.plan.fit import plan_fit
from rlep.plan.model_shape import ModelShape

CONFIGS = Path(__file__).parents[1] / "configs"
MACHINES = {"1x24gb": 23.5, "1x24gb-lora": 23.5, "1x80gb": 79.0, "1x80gb-lora": 79.0, "8x80gb": 79.0}
"""Shipped machine, smallest first -> GiB of a GPU that programs can have."""


def fitting(shape: ModelShape, *, lora: bool) -> str:
    """Return the smallest shipped machine that trains all weights, or adapters; ``–`` where none does."""
    for machine, gib in MACHINES.items():
        config = load_config([CONFIGS / "paper" / "rlep.toml", CONFIGS / "machines" / f"{machine}.toml"])
        fits = plan_fit(config, shape, gpu_bytes=int(gib * 2**30), host_bytes=None).fits
        if machine.endswith("-lora") == lora and fits:
            return machine
    return "–"


def table() -> str:
    """Return the table as Markdown."""
    rows = [
        f"| `{name}` | {shape.parameters / 1e9:.2f} B | {shape.parameters * 2 / 1e9:.1f} GB | "
        f"{fitting(shape, lora=False)} | {fitting(shape, lora=True)} |"
        for name, shape in MODELS.items()
    ]
    return "\n".join(["| `model.path` | Parameters | Download | All weights | LoRA |", "|---|---|---|---|---|", *rows])
