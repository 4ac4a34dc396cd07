"""The way of the learner's weights to the generators, confirmed by log-probs on both sides."""

from __future__ import annotations

from rlep.actors.generators import Generators
from rlep.actors.learners import Dtype, Learners, Probes


class WeightPublisher:
    """The driver's ``Weights`` port over one learner and any number of generators."""

    def __init__(
        self, learners: Learners, generators: Generators, probes: Probes, *, dtype: Dtype, deadline_s: float
    ) -> None:
        """``probes``: sequences for the handshake; ``dtype``: what the generators compute in."""
        self._learners, self._generators, self._probes = learners, generators, probes
        self._dtype, self._deadline = dtype, deadline_s

    async def publish(self, version: int) -> float:
        """See the port. Raises ``WeightSyncError`` when no generator's log-probs agree with the learner's."""
        publication = await self._learners.publish(version, self._probes, self._dtype)
        return await self._generators.publish(publication, deadline_s=self._deadline)
