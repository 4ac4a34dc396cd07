"""Verifier actors: each supervises its own killable grading processes."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence

import ray

from rlep.actors.cluster import Cluster
from rlep.actors.replicas import Changes
from rlep.actors.supervised import watch_call
from rlep.actors.worker_role import WorkerParts, WorkerReplica, WorkerRole
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ActorLost, DeadlineExceeded
from rlep.core.types import Asked, Completion, Prompt, Verdict
from rlep.services.verifier.grader import configured_verifier, limits_of
from rlep.services.verifier.worker_process import FIRST_TRIES

BATCH = 64
"""Responses in one call: enough to make the call itself cheap, few enough to spread one prompt's responses."""
MOST_CALLS = 2
"""Calls that a verifier holds, of which one travels while one works."""


@ray.remote(concurrency_groups={"health": 1})
class VerifierActor:
    """One verifier."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    def start(self, config: VerifierConfig) -> None:
        """Start the grading processes, once."""
        if hasattr(self, "_verifier"):
            return
        self._verifier = configured_verifier(config, workers=config.workers)

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool], asked: Asked) -> list[Verdict]:
        """Return one verdict per text, in order."""
        return self._verifier.grade(reference, texts, truncated, asked)

    def close(self) -> None:
        """End the grading processes."""
        self._verifier.close()


class VerifierPool(WorkerRole[WorkerReplica]):
    """All verifiers of a run behind the driver's ``Verifiers`` port."""

    def __init__(self, cluster: Cluster, config: VerifierConfig) -> None:
        parts = WorkerParts(cluster, config, VerifierActor, (config,), Changes())
        super().__init__("verifier", parts, WorkerReplica)
        self._limits = limits_of(config)

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order, the same however many verifiers there are.

        The responses of a verifier that is lost or removed are graded again, by its successor or another one. Raises
        ``ActorLost`` when no verifier is left and all are out of restarts.
        """
        parts = [completions[start : start + BATCH] for start in range(0, len(completions), BATCH)]
        graded = await asyncio.gather(*(self._grade(prompt, part) for part in parts))
        return [verdict for part in graded for verdict in part]

    async def _grade(self, prompt: Prompt, part: Sequence[Completion]) -> list[Verdict]:
        texts = [prompt.opening + completion.text for completion in part]
        truncated = [completion.finish_reason == "length" for completion in part]
        # Each response, of this call and of one before it, may last until its wall-clock limit.
        deadline = 60 + self._limits.wall_seconds * math.ceil((BATCH + len(texts)) / self._limits.at_once)
        deadline += FIRST_TRIES * self._limits.first_seconds
        while True:
            replica = await self._free_replica(MOST_CALLS)
            handle = replica.actor.living
            assert handle is not None, "one that serves is there"
            try:
                with self._parts.cluster.timeline.span(replica.name, "grade", len(part)):
                    verdicts: list[Verdict] = await watch_call(
                        handle,
                        handle.grade.remote(prompt.reference, texts, truncated, prompt.asked),
                        replica.name,
                        "grade",
                        deadline_s=deadline,
                        heartbeat_timeout_s=self._parts.config.heartbeat_timeout_s,
                    )
                    return verdicts
            except (ActorLost, DeadlineExceeded) as error:
                replica.lose(handle, error)
            finally:
                replica.busy -= 1
                self._parts.freed.tell()
