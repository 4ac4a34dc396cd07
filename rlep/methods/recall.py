"""Review of solved questions, in the manner of RECALL (arXiv 2606.03087): before they are forgotten for good, they come back.

Questions that were solved once are tracked; before the rollout, a part of the batch is replaced by those of them that are due,
which costs no further rollout. RECALL finds that the cost of restoring a forgotten question grows with the delay. No stored
response is replayed: only the question comes back, and its group has fresh responses alone.

Here a question is due ``after`` steps after its latest visit, and the due ones come in the order of the time since they were
last solved, the longest first; the rest of the batch are the data's next ones. That order, ``share`` and ``after`` are of this
implementation: of the paper the abstract alone was at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlep.core.errors import ConfigError
from rlep.core.types import Trajectory
from rlep.methods.live import Live
from rlep.methods.replay_method import Visit


class Recall(Live):
    """A quarter of a step's questions are reviews; nothing is replayed."""

    replays = {**Live.replays, "count": 1, "per_question": 1}

    share = 0.25
    """Largest share of a step's prompts that are reviews."""
    after = 8
    """Steps since a question's latest visit after which a review is due."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        super().__init__(seed=seed, fresh=fresh, options=options)
        if not (0 < self.share <= 1 and self.after >= 1):
            raise ConfigError("replay.options: share must be above 0 and at most 1, after at least 1")
        self._visited: dict[str, int] = {}
        """Prompt id → step of the latest visit, of prompts that were solved once."""
        self._solved: dict[str, int] = {}
        """Prompt id → the latest step that had a correct response of its own."""
        self._reviews: frozenset[str] = frozenset()

    def questions(self, step: int, batch: Sequence[str], stored: Mapping[str, int]) -> Sequence[str]:
        """Put the due questions in the place of the last of ``batch``; those that are in the rest of it stay there."""
        wanted = int(self.share * len(batch))
        due = [name for name, visit in self._visited.items() if step - visit >= self.after]
        due.sort(key=lambda prompt_id: (self._solved[prompt_id], prompt_id))
        own = batch[: len(batch) - wanted]
        reviews = [prompt_id for prompt_id in due if prompt_id not in own][:wanted]
        self._reviews = frozenset(reviews)
        rest = [prompt_id for prompt_id in batch[len(own) :] if prompt_id not in self._reviews]
        return [*own, *reviews, *rest[: wanted - len(reviews)]]

    def with_replays(self, step: int, prompt_ids: Sequence[str]) -> Sequence[str]:
        """Return none."""
        return ()

    def accepts(self, fresh: Sequence[Trajectory]) -> bool:
        """Take no replays, so that a run does not wait for any."""
        return False

    def learn(self, step: int, visits: Sequence[Visit]) -> Mapping[str, float]:
        """Note who was visited and solved; a question that was never solved is not reviewed."""
        for visit in visits:
            if visit.successes:
                self._solved[visit.prompt_id] = step
            if visit.prompt_id in self._solved:
                self._visited[visit.prompt_id] = step
        return {"live/reviewed": sum(visit.prompt_id in self._reviews for visit in visits)}

    def state(self) -> dict[str, Any]:
        """Return the latest visits and successes."""
        return {"visited": dict(self._visited), "solved": dict(self._solved)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from these."""
        self._visited, self._solved = dict(state.get("visited", {})), dict(state.get("solved", {}))

    def keep_prompts(self, prompt_ids: Collection[str]) -> None:
        """Review no other prompts."""
        self._visited = {prompt_id: step for prompt_id, step in self._visited.items() if prompt_id in prompt_ids}
