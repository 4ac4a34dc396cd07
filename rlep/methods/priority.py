"""Priority with limits, as in Trinity-RFT's queue: the newest and least used success comes first, rests, and is used up.

A stored response has priority birth − decay · uses, where Trinity-RFT has the version of the model that sampled it − decay ·
uses; it is not drawn within ``cooldown`` steps after a use, nor after ``most_uses`` uses. Ties: content id.

Different here: Trinity-RFT draws from one queue over all questions and cools down by seconds; here a question draws from its
own responses, and steps are counted, so that a continued run draws the same. A use is a draw, whether or not the group
accepted it. The formula is that of its ``priority_fn`` as an audit read it; limits and decay are of this implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlep.core.errors import ConfigError
from rlep.core.types import Trajectory
from rlep.methods.live import Live
from rlep.methods.replay_method import Visit


class Priority(Live):
    """Live replay, ranked by birth and uses."""

    decay = 2.0
    """Steps of age that one use costs in priority."""
    most_uses = 4
    """Draws after which a response does not come back; 0: never."""
    cooldown = 2
    """Steps in which a response is not drawn again."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        super().__init__(seed=seed, fresh=fresh, options=options)
        if min(self.decay, self.most_uses, self.cooldown) < 0:
            raise ConfigError("replay.options: decay, most_uses and cooldown must not be negative")
        self._uses: dict[str, dict[str, list[int]]] = {}
        """Prompt id → content id → (draws, step of the last one), of what was stored at the prompt's latest draw."""
        self._drawn: dict[str, dict[str, list[int]]] = {}
        """The same after the draws of the step in progress, which may be lost."""

    def choose(self, step: int, prompt_id: str, stored: Sequence[Trajectory], count: int) -> Sequence[Trajectory]:
        """Return the ``count`` of highest priority among those that neither rest nor are used up."""
        before = self._uses.get(prompt_id, {})
        uses = {member.content_id: before.get(member.content_id, [0, step - self.cooldown - 1]) for member in stored}
        free = [
            member
            for member in stored
            if step - uses[member.content_id][1] > self.cooldown
            and not 0 < self.most_uses <= uses[member.content_id][0]
        ]
        free.sort(key=lambda member: (self.decay * uses[member.content_id][0] - member.birth, member.content_id))
        chosen = free[:count]
        for member in chosen:
            uses[member.content_id] = [uses[member.content_id][0] + 1, step]
        self._drawn[prompt_id] = {content_id: use for content_id, use in uses.items() if use[0]}
        return chosen

    def learn(self, step: int, visits: Sequence[Visit]) -> Mapping[str, float]:
        """Count the draws of a complete step."""
        self._uses |= self._drawn
        self._drawn = {}
        return {}

    def state(self) -> dict[str, Any]:
        """Return the uses of every response."""
        return {"uses": {prompt_id: dict(uses) for prompt_id, uses in self._uses.items() if uses}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from these uses, without those of a step that was lost."""
        self._uses, self._drawn = {prompt_id: dict(uses) for prompt_id, uses in state.get("uses", {}).items()}, {}
