"""The device a rank computes on, and the state of torch's generators there, as tensors that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def current_device(kind: str) -> torch.device:
    """The CPU, or of a process's GPUs (``cuda``) the one that it has chosen."""
    return torch.device(kind, torch.cuda.current_device() if kind == "cuda" else None)


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
