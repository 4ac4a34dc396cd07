"""How many generators there shall be: more when requests wait longer than a newcomer needs, fewer when all are idle."""

from __future__ import annotations

from dataclasses import dataclass

FULL = 0.75
"""A generator that holds this share of its sequences takes no more before some are finished."""


@dataclass(frozen=True, slots=True)
class Load:
    """The generators at one time."""

    at: float
    """Seconds on any clock."""
    held: tuple[int, ...]
    """Requests that each generator at work holds."""
    coming: int = 0
    """Generators that are on their way."""
    waiting: int = 0
    """Requests that no generator holds."""

    @property
    def count(self) -> int:
        """Generators at work and on their way."""
        return len(self.held) + self.coming


@dataclass(frozen=True, slots=True)
class Limits:
    """Between what the number moves, and how soon."""

    minimum: int
    maximum: int
    sequences: int
    """Requests that one generator can hold."""
    start_s: float
    """Seconds a newcomer needs until it works."""
    idle_s: float
    """Seconds without any request after which only ``minimum`` stay."""


class Autoscaling:
    """The number of generators by what one sees of them, look by look; always within its limits.

    Requests wait for a generator when some wait and all at work are full. Once they have waited for as long as a
    newcomer needs to start, as many come as hold what is waiting: who waits that long at most doubles the wait he could
    have had by knowing the future (ski rental). Nobody leaves while others work: a step's requests are spread evenly.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._full_since: float | None = None
        self._idle_since: float | None = None

    def wanted(self, load: Load) -> int:
        """How many there shall be now."""
        limits = self._limits
        full = load.waiting > 0 and all(held >= FULL * limits.sequences for held in load.held)
        idle = not load.waiting and not any(load.held)
        self._full_since = _since(self._full_since, load.at, holds=full and not load.coming)
        self._idle_since = _since(self._idle_since, load.at, holds=idle)
        count = load.count
        if self._full_since is not None and load.at - self._full_since >= limits.start_s:
            self._full_since = None
            count += -(-load.waiting // limits.sequences)
        elif self._idle_since is not None and load.at - self._idle_since >= limits.idle_s:
            count = limits.minimum
        return min(max(count, limits.minimum), limits.maximum)


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    """When something began that ``holds`` now."""
    if not holds:
        return None
    return now if before is None else before
