"""Weight updates from the learner to the generators, confirmed by log-probs on both sides.

Through shared memory the learner writes and each generator loads when it can. Over gloo or NCCL they are one group: all
take part in a transfer at the same time, and a generator that starts later joins at the next weight update, in a new group.

    step                 consumes              waits for                       unblocked by
    ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    offer                a trained version     rank 0's weight file            the learner
    take                 the offer             one confirmed load              a generator; one that is started again
    _members_now         who lives             at least one generator          a restart; its deadline
    _attempt             one group's offer     all loads, and the broadcast    all members; the loss of one breaks it
    publish              up to 3 attempts      one that succeeds               members that changed: a new group
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rlep.actors.generators import GeneratorPool
from rlep.actors.learner_actor import Probes
from rlep.actors.learners import Learners
from rlep.config.roles import GeneratorConfig
from rlep.core.errors import ModelError, WeightSyncError
from rlep.core.waiting import until
from rlep.engines.weights.weight_update import BroadcastGroup, GroupBackend, WeightUpdate

ATTEMPTS = 3
_POLL_S = 0.1


class GroupSession:
    """The group over one learner and whichever generators live; made anew when they change or a transfer failed."""

    def __init__(self, learners: Learners, generators: GeneratorPool, probes: Probes, config: GeneratorConfig) -> None:
        self._learners, self._generators, self._probes, self._dtype = learners, generators, probes, config.compute_dtype
        self._config = config
        self._backend: GroupBackend = "nccl" if config.transfer == "nccl" else "gloo"
        self._members: tuple[str, ...] = ()
        self._group: BroadcastGroup | None = None

    async def publish(self, version: int, deadline_s: float) -> float:
        """Bring every living generator to ``version``; returns the largest mean log-prob difference (nats).

        Raises:
            WeightSyncError: no generator came within ``deadline_s``, or every attempt failed; says who failed.
            LearnerLost: the learner did.
            ModelError: generators and learner disagree on which weights the model has.
        """
        errors: list[str] = []
        for number in range(1, ATTEMPTS + 1):
            members = await self._members_now(version, deadline_s)
            try:
                return await self._attempt(version, members)
            except WeightSyncError as error:
                self._group = None
                errors.append(f"attempt {number}: {error}")
            except BaseException:
                self._group = None
                raise
        raise WeightSyncError(f"policy version {version} was not transferred: " + "; ".join(errors))

    async def _members_now(self, version: int, deadline_s: float) -> tuple[str, ...]:
        late = WeightSyncError(f"no generator was there for policy version {version} within {deadline_s:.0f} s")
        await until(self._generators.living, late, deadline_s=deadline_s, poll_s=_POLL_S)
        return self._generators.living()

    async def _attempt(self, version: int, members: tuple[str, ...]) -> float:
        workers, deadline_s = self._config.tensor_parallel, self._config.transfer_deadline_s
        if self._group is None or members != self._members:
            size = 1 + workers * len(members)
            self._group = await self._learners.open_group(self._backend, size, deadline_s)
            self._members = members
        group = self._group
        offer = await self._learners.publish(version, self._probes, self._dtype, group)
        if ended := sorted(set(members) - set(self._generators.living())):
            # The others would wait for them.
            raise WeightSyncError(f"{', '.join(ended)} ended before the transfer")
        parts = {
            member: replace(offer, source=replace(group, first_rank=1 + number * workers))
            for number, member in enumerate(members)
        }
        longest = 3 * deadline_s  # to meet, to transfer, and to score the probes
        sending = asyncio.ensure_future(self._learners.send(group, self._dtype, longest))

        async def take() -> float:
            try:
                return await self._generators.take(parts, deadline_s=longest)
            except ModelError:  # nobody will come whom the learner waits for
                sending.cancel()
                raise

        difference, sent = await asyncio.gather(take(), sending, return_exceptions=True)
        failed = [outcome for outcome in (difference, sent) if isinstance(outcome, BaseException)]
        for error in failed:
            if not isinstance(error, WeightSyncError):
                raise error
        if isinstance(difference, BaseException) or failed:
            raise WeightSyncError("; ".join(map(str, failed)))
        return difference


class WeightPublisher:
    """The driver's ``Weights`` port over one learner and any number of generators."""

    def __init__(
        self,
        learners: Learners,
        generators: GeneratorPool,
        probes: Probes,
        *,
        config: GeneratorConfig,
        deadline_s: float,
    ) -> None:
        """``probes``: for the log-prob check; ``config``: of the generators."""
        self._learners, self._generators, self._probes = learners, generators, probes
        self._dtype, self._deadline = config.compute_dtype, deadline_s
        self._session = (
            None if config.transfer == "shared_memory" else GroupSession(learners, generators, probes, config)
        )

    async def publish(self, version: int) -> float:
        """Bring the generators to ``version``; returns the largest mean log-prob difference (nats).

        Raises ``WeightSyncError`` when no generator's weights and log-probs are the learner's, and ``ModelError`` at once
        when they disagree on which weights the model has.
        """
        if self._session is not None:
            return await self._session.publish(version, self._deadline)
        return await self.take(await self.offer(version))

    async def offer(self, version: int) -> WeightUpdate:
        """Have the learner write a weight file in shared memory, with its log-probs."""
        return await self._learners.publish(version, self._probes, self._dtype)

    async def take(self, offer: WeightUpdate) -> float:
        """Have the generators load an offer; returns the largest mean log-prob difference (nats)."""
        return await self._generators.publish(offer, deadline_s=self._deadline)
