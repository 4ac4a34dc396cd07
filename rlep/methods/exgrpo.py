"""ExGRPO (arXiv 2510.02245): half of a step's questions are drawn by how often they were solved, and get one replay each.

As in the paper: one of a group's responses is a replay; questions are drawn by a normal density around 50 % correct; the
response with the lowest entropy, which its Algorithm 1 defines as the largest mean log-prob; importance ratio to its own
sampler, shaped, without clip; start at 35 % correct; fully solved questions are not replayed any more.

Different here: log-probs are stored by the learner instead of the sampler; the replay does not count as a success of its
question; fully solved questions stay in the data; fresh responses keep the configuration's clip. The authors' code takes
entropies over padding as well, which favours short responses; this does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlep.core.draws import draw_questions
from rlep.core.errors import ConfigError
from rlep.methods.live import Live
from rlep.methods.replay_method import Visit


class ExGrpo(Live):
    """Live replay for questions by their successes."""

    replays = {**Live.replays, "count": 1, "group": "replace", "selection": "most-probable"}
    terms = {"old_logprobs": "behaviour", "shaping": 0.1}

    ratio = 0.5
    """Share of the step's prompts that are drawn, and get replays."""
    bucket_mean, bucket_std = 0.5, 0.125
    """The normal density over the share of correct responses by which they are drawn."""
    start_accuracy = 0.35
    """No replay before the first step with this share of correct fresh responses."""
    retire_after = 1
    """Visits in a row with nothing but correct fresh responses after which a prompt gets no replays."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        super().__init__(seed=seed, fresh=fresh, options=options)
        if not (0 < self.ratio < 1 and self.bucket_std > 0):
            raise ConfigError("replay.options: ratio must be between 0 and 1, bucket_std above 0")
        if not (0 <= self.bucket_mean <= 1 and 0 <= self.start_accuracy <= 1):
            raise ConfigError("replay.options: bucket_mean and start_accuracy are shares from 0 to 1")
        self._started = not self.start_accuracy
        self._solved: dict[str, int] = {}
        """Prompt id → its latest visits in a row with nothing but correct responses."""
        self._successes: dict[str, int] = {}
        """Prompt id → correct ones of G responses at its latest visit."""
        self._drawn: frozenset[str] = frozenset()

    def questions(self, step: int, batch: Sequence[str], stored: Mapping[str, int]) -> Sequence[str]:
        """Keep the first part of ``batch`` and draw the rest; where too few are stored, more of ``batch`` stay."""
        kept = len(batch) - int(self.ratio * len(batch))
        beside = set(batch[:kept])
        known = {
            prompt_id: self._successes[prompt_id]
            for prompt_id in stored
            if self._started and prompt_id in self._successes and prompt_id not in beside
            if not self._retired(prompt_id)
        }
        count, mean, std = len(batch) - kept, self.bucket_mean, self.bucket_std
        drawn = draw_questions(known, count, of=self.fresh, mean=mean, std=std, seed=self.seed, step=step)
        self._drawn = frozenset(drawn)
        rest = [prompt_id for prompt_id in batch[kept:] if prompt_id not in self._drawn]
        return [*batch[:kept], *drawn, *rest[: count - len(drawn)]]

    def with_replays(self, step: int, prompt_ids: Sequence[str]) -> Sequence[str]:
        """Return the prompts that ``questions`` has drawn."""
        return [prompt_id for prompt_id in prompt_ids if prompt_id in self._drawn]

    def learn(self, step: int, visits: Sequence[Visit]) -> Mapping[str, float]:
        """Count successes; where replays took the place of some responses, in responses of G, rounded."""
        for visit in visits:
            whole = visit.successes == visit.responses
            self._solved[visit.prompt_id] = self._solved.get(visit.prompt_id, 0) + 1 if whole else 0
            self._successes[visit.prompt_id] = int(self.fresh * visit.successes / visit.responses + 0.5)
        correct, responses = sum(visit.successes for visit in visits), sum(visit.responses for visit in visits)
        self._started = self._started or correct >= self.start_accuracy * responses > 0
        return {"live/retired": sum(map(self._retired, self._solved))}

    def _retired(self, prompt_id: str) -> bool:
        return 0 < self.retire_after <= self._solved.get(prompt_id, 0)

    def state(self) -> dict[str, Any]:
        """Return the counts of every question."""
        return {"started": self._started, "solved": dict(self._solved), "successes": dict(self._successes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from these counts."""
        self._started = bool(state.get("started", not self.start_accuracy))
        self._solved, self._successes = dict(state.get("solved", {})), dict(state.get("successes", {}))
