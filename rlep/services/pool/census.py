"""What a page about a pool shows: its counters, and responses to a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlep.core.types import Trajectory

LEVELS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Counted:
    """How many responses questions have."""

    questions: int
    """All that ever had a response."""
    at_least: Mapping[int, int]
    """n → questions with at least n responses, for n = 1, 2, 4, 8."""
    quarantined: int
    """Quarantined responses to them."""

    @property
    def counted(self) -> int:
        """All of them."""
        return self.questions


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Counters of a pool."""

    trajectories: int
    bytes: int
    """Size of the stored records."""
    by_policy: Mapping[str, int]
    """``digest@version`` of the policy → trajectories, most first."""
    by_verifier: Mapping[str, int]
    """``name@version`` of the verifier → trajectories, most first."""
    cap: int
    minimum: int
    """Responses that a question needs before any is drawn."""
    tokenizer_digest: str
    sealed: str | None
    """The digest of a sealed pool."""
    coverage: Counted


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One response in a pool; None where its record is damaged."""

    content_id: str
    trajectory: Trajectory | None
    quarantined: bool
