"""How many requests generators hold at once while update sets are trained as they complete: measured, not guessed.

More in flight decode in larger batches, which cost less per token; fewer let the first update set finish earlier, so that
the learner starts earlier. Which wins depends on the engine, the learner and the lengths, so steps try both. The number
changes when an answer is written, never which answer.
"""

from __future__ import annotations

from collections import deque
from statistics import median

TRIALS = 2
"""Steps that each number is tried for before the best is used."""
REMEMBERED = 4
"""Steps whose costs count."""
LOOK_ROUND = 8
"""Every so many steps a neighbour of the best is measured again: lengths change as training goes on."""
HOPELESS = 1.1
"""A number that costs so many times the best ends the search in its direction."""


class InFlight:
    """Requests in flight, from what steps cost so far: 1, 2, 4, … update sets' worth, or the whole step.

    Tried from the whole step downwards, twice each, until fewer cost 10 % more than the best; from then on the best (the
    least median of its last four steps), and at every eighth step the number beside it on one side or the other.
    """

    def __init__(self, requests: int, sets: int) -> None:
        """``requests`` of one update set; ``sets`` of them in a step."""
        powers = [1 << power for power in range(sets.bit_length()) if 1 << power < sets]
        self._numbers = [requests * count for count in (*powers, sets)]
        self._costs: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in self._numbers]
        self._steps = 0
        self._at = len(self._numbers) - 1

    @property
    def now(self) -> int:
        """The number for the next step."""
        return self._numbers[self._at]

    def record(self, seconds: float, tokens: int) -> None:
        """What the step with ``now`` took, and how many fresh tokens it wrote; decides on the next step's number."""
        self._steps += 1
        if self._steps == 1 or not tokens:
            return  # a process's first step also warms everything up
        self._costs[self._at].append(seconds / tokens)
        self._at = self._next()

    def _next(self) -> int:
        known = [at for at, costs in enumerate(self._costs) if len(costs) >= TRIALS]
        if not known:
            return self._at
        best = min(known, key=self._cost)
        lowest = min(known)
        if len(self._costs[self._at]) < TRIALS and self._at < lowest:
            return self._at
        if (
            lowest > 0
            and len(known) == len(self._numbers) - lowest
            and self._cost(lowest) < HOPELESS * self._cost(best)
        ):
            return lowest - 1
        if self._steps % LOOK_ROUND == 0:
            beside = best - 1 if self._steps // LOOK_ROUND % 2 else best + 1
            return min(max(beside, 0), len(self._numbers) - 1)
        return best

    def _cost(self, at: int) -> float:
        return median(self._costs[at])
