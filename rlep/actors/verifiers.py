"""Verifier actors: each supervises its own killable grading processes; their number is independent of everything else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle

from rlep.actors.cluster import Cluster, call
from rlep.actors.supervised import Supervised
from rlep.config_roles import VerifierConfig
from rlep.services.verifier.grader import build_verifier
from rlep.services.verifier.jail import Limits
from rlep.types import Completion, Prompt, Verdict

BATCH = 64
"""Answers in one call: enough to make the call itself cheap, few enough to spread one prompt's answers."""


@ray.remote(concurrency_groups={"health": 1})
class VerifierActor:
    """One verifier."""

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def start(self, config: VerifierConfig) -> None:
        """Start the grading processes."""
        limits = Limits(cpu_seconds=config.cpu_seconds)
        self._verifier = build_verifier(config.profile, workers=config.workers, limits=limits)

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool]) -> list[Verdict]:
        """One verdict per text, in order."""
        return self._verifier.grade(reference, texts, truncated)

    def close(self) -> None:
        """End the grading processes."""
        self._verifier.close()


class Verifiers:
    """All verifiers of a run behind the driver's ``Verifiers`` port."""

    def __init__(self, cluster: Cluster, config: VerifierConfig) -> None:
        async def start(name: str) -> ActorHandle[Any]:
            actor = await cluster.place(VerifierActor, name, config)
            await call(actor.start.remote(config), f"starting {name}", config.start_deadline_s)
            return actor

        names = [f"verifier-{index}" for index in range(config.count)]
        self._actors = [
            Supervised(
                name,
                partial(start, name),
                restarts=config.restarts,
                silence_s=config.silence_s,
                report=cluster.report,
            )
            for name in names
        ]
        self._config = config
        self._idle: asyncio.Queue[Supervised] = asyncio.Queue()

    async def start(self) -> None:
        """Start all verifiers."""
        await asyncio.gather(*(actor.handle() for actor in self._actors))
        for actor in (*self._actors, *self._actors):  # two calls in flight for each: one works while one travels
            self._idle.put_nowait(actor)

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order, the same however many verifiers there are.

        A lost verifier's answers are graded again by its successor. Raises ``ActorLost`` when its restarts are spent.
        """
        parts = [completions[start : start + BATCH] for start in range(0, len(completions), BATCH)]
        graded = await asyncio.gather(*(self._grade(prompt.reference, part) for part in parts))
        return [verdict for part in graded for verdict in part]

    async def close(self) -> None:
        """End all verifiers."""
        await asyncio.gather(*(actor.close() for actor in self._actors))

    async def _grade(self, reference: str, part: Sequence[Completion]) -> list[Verdict]:
        texts = [completion.text for completion in part]
        truncated = [completion.finish_reason == "length" for completion in part]
        # Each answer may use its CPU deadline, and its process may have to be started again.
        deadline = 60 + 4 * self._config.cpu_seconds * len(part)
        actor = await self._idle.get()
        try:
            verdicts: list[Verdict] = await actor.call("grade", reference, texts, truncated, deadline_s=deadline)
            return verdicts
        finally:
            self._idle.put_nowait(actor)
