"""Values that pass between the parts of a step."""

from __future__ import annotations

from dataclasses import dataclass

from rlep.algorithms.shaping import Rewards
from rlep.core.types import Float32Array, Group, SequenceBatch


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The whole groups of one optimizer update."""

    groups: tuple[Group, ...]
    rewards: Rewards
    batch: SequenceBatch


@dataclass(frozen=True, slots=True, eq=False)
class ScoredMiniBatch(MiniBatch):
    """A mini-batch whose ``batch`` has old log-probs: what an update trains on."""

    current_logprobs: Float32Array
    """Log-probs of all response tokens under θ_k, ``[R]``; the old ones differ from them only for replays, by option."""
