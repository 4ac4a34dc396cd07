"""Rewards of trainers' reward functions: which are numbers to learn from, and where a stored response keeps its own."""

from __future__ import annotations

import numpy as np

from rlep.core.errors import ConfigError
from rlep.core.types import Trajectory

REWARD = "reward"
"""Key of a stored response's metadata: what the trainer's reward function gave it."""
_LARGEST = float(np.finfo(np.float32).max)
"""Trainers compute advantages in float32, where a larger reward is infinite."""


def is_finite(reward: float) -> bool:
    """Tell whether a group's mean and deviation stay finite with this reward."""
    return abs(reward) <= _LARGEST


def check_finite(option: str, reward: float) -> float:
    """Return the option's value. Raises ``ConfigError`` for NaN and what is infinite in float32."""
    if not is_finite(reward):
        raise ConfigError(f"{option} = {reward}: give a reward that float32 holds, e.g. 1.0")
    return reward


def stored_reward(member: Trajectory) -> float | None:
    """Return the reward in a stored response's metadata; None if it names none, NaN if that is no number."""
    text = member.metadata.get(REWARD)
    try:
        return None if text is None else float(text)
    except ValueError:
        return float("nan")
