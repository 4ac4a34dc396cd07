"""From verdicts to scores. The unshaped verdict stays beside the shaped score all the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlep.core.errors import ConfigError
from rlep.core.types import BoolArray, Float64Array, Trajectory

if TYPE_CHECKING:  # the public ``overlong_penalty`` needs no pydantic
    from rlep.config.training import RewardConfig


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """Rewards of S trajectories; every array is ``[S]``."""

    accuracy: BoolArray
    """The verdict: what admission, dynamic sampling and every accuracy metric use."""
    scores: Float64Array
    """The shaped reward: what advantages use, and nothing else."""
    trained: BoolArray
    """False for trajectories that ``mask_truncated`` takes out of the loss."""


def rewards(trajectories: Sequence[Trajectory], rule: RewardConfig, max_length: int) -> Rewards:
    """Score trajectories, fresh and replayed alike: reward of the verdict plus the soft overlong penalty on sampled tokens.

    A verdict with score s has (1 − s) · ``otherwise`` + s · ``correct``. One without has ``correct`` or ``otherwise``, a timeout
    too: an answer that cannot be checked must not pay.
    A replay has the verdict, and thus the score, that it was stored with. ``max_length``: of a response, EOS included.
    """
    penalties = [_penalty_of(t.sampled_length, rule, max_length) for t in trajectories]
    credit = np.array([t.verdict.credit for t in trajectories], dtype=np.float64)
    truncated = np.array([t.finish_reason == "length" for t in trajectories], dtype=np.bool_)
    return Rewards(
        accuracy=np.array([t.correct for t in trajectories], dtype=np.bool_),
        scores=(1.0 - credit) * rule.otherwise + credit * rule.correct + np.array(penalties, dtype=np.float64),
        trained=~truncated if rule.mask_truncated else np.ones(len(trajectories), dtype=np.bool_),
    )


def overlong_penalty(length: int, *, max_length: int, buffer: int, factor: float = 1.0) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 at first, then linear to ``−factor``.

    L(l) = f · min(0, ((Lmax − Lc) − l) / Lc), clamped at −f; ``length`` counts the EOS.
    """
    if length < 0:
        raise ValueError(f"length = {length}: a response has no fewer than 0 tokens")
    if not 0 < buffer <= max_length:
        raise ConfigError(f"buffer = {buffer}: must lie in 1 … max_length = {max_length}")
    if not (math.isfinite(factor) and factor >= 0):
        raise ConfigError(f"factor = {factor}: must be finite and not negative")
    return factor * max(-1.0, min(0.0, ((max_length - buffer) - length) / buffer))


def _penalty_of(length: int, rule: RewardConfig, max_length: int) -> float:
    if not rule.overlong_buffer:
        return 0.0
    return overlong_penalty(length, max_length=max_length, buffer=rule.overlong_buffer, factor=rule.overlong_factor)
