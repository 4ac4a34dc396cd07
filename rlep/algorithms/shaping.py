"""From verdicts to scores. The unshaped verdict stays beside the shaped score all the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlep.core.errors import ConfigError
from rlep.core.types import STATUSES, BoolArray, Float64Array, Status, Trajectory, Verdict


def status_rewards(*, correct: float = 1.0, wrong: float = -1.0) -> dict[Status, float]:
    """The reward of every status: ``correct`` for a correct response, ``wrong`` for all others (paper: +1 and −1).

    A verifier's timeout is counted apart from a wrong answer but earns no more: an answer that cannot be checked
    must not pay.
    """
    return {status: correct if status == "correct" else wrong for status in STATUSES}


@dataclass(frozen=True, slots=True)
class Shaping:
    """Rule by which a verdict becomes a score."""

    rewards: Mapping[Status, float] = field(default_factory=status_rewards)
    """Reward of each status, before the length penalty."""
    max_length: int = 3072
    """Lmax: the longest response in tokens, EOS included."""
    buffer: int = 512
    """Lc: the penalty starts at ``max_length − buffer`` tokens; 0 turns the penalty off."""
    factor: float = 1.0
    """f: the penalty at ``max_length`` tokens."""
    mask_truncated: bool = False
    """True takes truncated responses out of the loss and of the token count; their score still enters the baseline."""

    def __post_init__(self) -> None:
        unknown, missing = set(self.rewards) - set(STATUSES), set(STATUSES) - set(self.rewards)
        if unknown or missing:
            raise ConfigError(f"rewards: unknown statuses {sorted(unknown)}, missing statuses {sorted(missing)}")
        for status, reward in self.rewards.items():
            if not math.isfinite(reward):
                raise ConfigError(f"rewards[{status!r}] = {reward}: must be a finite number")
        if self.buffer:
            _check_penalty(self.max_length, self.buffer, self.factor)


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """Rewards of S trajectories; every array is ``[S]``."""

    accuracy: BoolArray
    """The verdict: what admission, dynamic sampling and every accuracy metric use."""
    scores: Float64Array
    """The shaped reward: what advantages use, and nothing else."""
    trained: BoolArray
    """False for trajectories that ``mask_truncated`` takes out of the loss."""


def rewards(trajectories: Sequence[Trajectory], shaping: Shaping) -> Rewards:
    """Score trajectories, fresh and replayed alike: reward of the verdict plus the soft overlong penalty on sampled tokens.

    A verdict without a score has the reward of its status; one with score s has (1 − s) · wrong + s · correct, of the
    rewards of these two statuses. A replay has the verdict, and thus the score, that it was stored with.
    """
    penalties = [_penalty_of(t.sampled_length, shaping) for t in trajectories]
    base = [_reward_of(t.verdict, shaping.rewards) for t in trajectories]
    truncated = np.array([t.finish_reason == "length" for t in trajectories], dtype=np.bool_)
    return Rewards(
        accuracy=np.array([t.correct for t in trajectories], dtype=np.bool_),
        scores=np.array(base, dtype=np.float64) + np.array(penalties, dtype=np.float64),
        trained=~truncated if shaping.mask_truncated else np.ones(len(trajectories), dtype=np.bool_),
    )


def overlong_penalty(length: int, *, max_length: int, buffer: int, factor: float = 1.0) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 at first, then linear to ``−factor``.

    L(l) = f · min(0, ((Lmax − Lc) − l) / Lc), clamped at −f; ``length`` counts the EOS.
    """
    if length < 0:
        raise ValueError(f"length = {length}: a response has no fewer than 0 tokens")
    _check_penalty(max_length, buffer, factor)
    return factor * max(-1.0, min(0.0, ((max_length - buffer) - length) / buffer))


def _reward_of(verdict: Verdict, rewards: Mapping[Status, float]) -> float:
    if verdict.score is None:
        return rewards[verdict.status]
    return (1.0 - verdict.score) * rewards["wrong"] + verdict.score * rewards["correct"]


def _penalty_of(length: int, shaping: Shaping) -> float:
    if not shaping.buffer:
        return 0.0
    return overlong_penalty(length, max_length=shaping.max_length, buffer=shaping.buffer, factor=shaping.factor)


def _check_penalty(max_length: int, buffer: int, factor: float) -> None:
    if not 0 < buffer <= max_length:
        raise ConfigError(f"buffer = {buffer}: must lie in 1 … max_length = {max_length}")
    if not (math.isfinite(factor) and factor >= 0):
        raise ConfigError(f"factor = {factor}: must be finite and not negative")
