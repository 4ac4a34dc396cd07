"""Counts of what replay did, as take_counts() and the logs of trainers have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlep.core.types import Trajectory


@dataclass(slots=True)
class Counts:
    """Counts since they were last taken."""

    rows: int = 0
    """Responses drawn."""
    empty: int = 0
    """Prompts for which replays were wanted and none was there."""
    unfit: int = 0
    """Responses drawn and left out, because this run cannot train on them."""
    stored: int = 0
    duplicates: int = 0
    """Successes that the pool held before."""
    removed: int = 0
    """Own responses that no later step sees, which ``trim`` took out of the pool."""
    refused: int = 0
    """Successes that the pool does not take: quarantined ones, or those over its cap."""
    lost: int = 0
    """Successes that were not stored because the server did not answer."""
    away: int = 0
    """Draws and insertions left out because the server did not answer."""
    live: int = 0
    """Those of ``rows`` that this run stored itself."""
    age: float | None = None
    """Their mean age: steps since they were stored. None without any: other runs' steps are not this run's."""

    def replayed(self, step: int, members: Sequence[Trajectory]) -> None:
        """Add the replays of a step."""
        ages = [step - member.birth for member in members if member.birth >= 0]
        if ages:
            self.age = ((self.age or 0.0) * self.live + sum(ages)) / (self.live + len(ages))
        self.rows, self.live = self.rows + len(members), self.live + len(ages)

    def of(self, step: int, members: Sequence[Trajectory]) -> Counts:
        """Count the replays that a trainer placed, instead of all that were drawn."""
        placed = replace(self, rows=0, live=0, age=None)
        placed.replayed(step, members)
        return placed
