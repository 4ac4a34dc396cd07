"""The device a rank computes on."""

from __future__ import annotations

import torch


def current_device(kind: str) -> torch.device:
    """The CPU, or of a process's GPUs (``cuda``) the one that it has chosen."""
    return torch.device(kind, torch.cuda.current_device() if kind == "cuda" else None)
