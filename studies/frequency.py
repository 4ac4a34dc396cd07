"""Live replay by frequency, a control: what the policy writes often comes back often, also where it has just written it.

Plain live replay draws uniformly among the distinct successes of a question and leaves out what a fresh response repeats, so
that it lifts rare ways to an answer. Is that all its effect? Here a success has the weight of the times that it was sampled, to
a power: 0 draws uniformly, and only keeps the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlep.core.seeds import generator_for
from rlep.core.types import Trajectory
from rlep.methods.live import Live
from rlep.methods.replay_method import Visit

Counts = dict[str, dict[str, int]]
"""Prompt id → content id → times that the response was sampled."""


class Frequency(Live):
    """Live replay, drawn without replacement by how often each success was sampled; copies of fresh responses stay."""

    copies = True
    power = 1.0
    """Exponent of the weights."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        super().__init__(seed=seed, fresh=fresh, options=options)
        self._counts: Counts = {}
        self._new: list[tuple[str, str]] = []
        """Successes of the step in progress, which may be lost: prompt id and content id."""

    def choose(self, step: int, prompt_id: str, stored: Sequence[Trajectory], count: int) -> Sequence[Trajectory]:
        """Draw ``count``; the largest of u^(1/weight) are a draw without replacement (Efraimidis and Spirakis, 2006)."""
        ordered = sorted(stored, key=lambda member: member.content_id)
        counts = self._counts.get(prompt_id, {})
        weights = np.array([counts.get(member.content_id, 1) ** self.power for member in ordered], dtype=np.float64)
        draws = generator_for(self.seed, "frequency", step, prompt_id).random(len(ordered))
        best = np.argsort(-(draws ** (1 / weights)), kind="stable")[:count]
        return [ordered[place] for place in best]

    def accepts(self, fresh: Sequence[Trajectory]) -> bool:
        """Count the successes of a group; its replays join it."""
        self._new += [(member.prompt_id, member.content_id) for member in fresh if member.correct]
        return True

    def learn(self, step: int, visits: Sequence[Visit]) -> Mapping[str, float]:
        """Keep the counts of a complete step."""
        for prompt_id, content_id in self._new:
            counts = self._counts.setdefault(prompt_id, {})
            counts[content_id] = counts.get(content_id, 0) + 1
        self._new = []
        return {}

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"counts": self._counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from these counts, without those of a step that was lost."""
        self._counts, self._new = {name: dict(counts) for name, counts in state.get("counts", {}).items()}, []
