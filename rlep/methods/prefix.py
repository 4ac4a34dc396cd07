"""Prefix replay: a share of the step's questions is given the beginning of a stored success, and the policy goes on from there.

As in PrefixRL (arXiv 2601.18795): the prefix y_1…h of a stored success y is joined to the question x, all G responses of the
group are sampled after (x, y_1…h), and the policy gradient is of those continuations alone. A prefix is context, like a
prompt: it has no ratio, no clip, no KL and no place in the token count, so nothing is off-policy. The group's baseline is that
of its own prefix. Groups without a prefix stay in the batch, since it is the bare question that counts. PROS (ICLR 2026) and
Prefix Sampling (arXiv 2605.05112) do the same with the run's own responses, which here is ``replay.source = "live"``.

Different here: h = ⌊f · T⌋ with f uniform in [shortest, longest], drawn for every (step, question); PrefixRL fixes a few
prefixes of each hard question beforehand, by the accuracy they lead to, PROS and Prefix Sampling steer h toward a pass rate
of 50 %, and Prefix Sampling also handicaps easy questions by prefixes of failures. Which questions get one is drawn, too:
PrefixRL trains hard ones only. The bounds and the share are of this implementation; the papers' were not at hand.
A continuation is not stored as a live response: the learner's log-probs of its prefix are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlep.core.errors import ConfigError
from rlep.core.seeds import generator_for
from rlep.core.types import Trajectory
from rlep.methods.replay_method import ReplayMethod


class Prefix(ReplayMethod):
    """Half of the questions with a stored success continue one of them."""

    replays = {"count": 1, "minimum": 1, "group": "prefix"}

    share = 0.5
    """Share of the questions that are given a prefix, where a success is stored."""
    shortest, longest = 0.2, 0.8
    """Bounds of f, the share of the stored response that is given."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        super().__init__(seed=seed, fresh=fresh, options=options)
        if not (0 < self.share <= 1 and 0 <= self.shortest <= self.longest < 1):
            raise ConfigError(
                "replay.options: share must be above 0 and at most 1, shortest and longest from 0 to below 1"
            )

    def with_replays(self, step: int, prompt_ids: Sequence[str]) -> Sequence[str]:
        """Return each prompt with probability ``share``."""
        return [each for each in prompt_ids if generator_for(self.seed, "prefixed", step, each).random() < self.share]

    def given(self, step: int, stored: Trajectory) -> int:
        """Return ⌊f · T⌋, which leaves at least one token to be generated."""
        f = generator_for(self.seed, "prefix", step, stored.prompt_id).uniform(self.shortest, self.longest)
        return int(f * len(stored.tokens))
