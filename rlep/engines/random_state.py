"""The state of torch's generators on one rank, as tensors that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(rank: int, device: torch.device) -> dict[str, Tensor]:
    """The present state, under names of this rank."""
    state = {f"rng.cpu.{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"rng.cuda.{rank}"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """Take up what ``random_state`` gave."""
    torch.set_rng_state(state[f"rng.cpu.{rank}"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rng.cuda.{rank}"])
