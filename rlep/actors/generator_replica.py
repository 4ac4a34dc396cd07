"""The driver's side of one generator."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from ray.actor import ActorHandle

from rlep.actors.replicas import Rate, State
from rlep.core.errors import ActorLost


class GeneratorReplica:
    """Its actor while it lives, and its state."""

    def __init__(self, name: str, restarts: int) -> None:
        self.name = name
        self.restarts_left = restarts
        self.actor: ActorHandle[Any] | None = None
        self.lost = asyncio.Event()
        self.freed = asyncio.Event()
        self.ready = asyncio.Event()
        """Set while it serves a policy version."""
        self.loading = asyncio.Lock()
        """Held while it loads weights, which others may load with it in a group."""
        self.error: Exception | None = None
        self.difference: float | None = None
        """Max log-prob difference (nats) of its last confirmed weights; None while it has not loaded the latest weight update."""
        self.asleep = False
        """Whether it has freed its device's memory; the next weights wake it."""
        self.state: State = "placing"
        self.version: int | None = None
        self.restarts = 0
        self.numbers = itertools.count()
        """Of the calls that its actor carries out once."""
        self.rate = Rate()
        self.supervisor: asyncio.Task[None] | None = None

    @property
    def out_of_restarts(self) -> bool:
        """Whether it is dead and out of restarts."""
        return self.supervisor is not None and self.supervisor.done()

    def lose(self, actor: ActorHandle[Any], error: Exception) -> None:
        """Take the generator out of service, unless ``actor`` is one that was replaced before."""
        if self.actor is not actor:
            return
        self.error = error
        self.lost.set()
        self.freed.set()


def nobody_left(replicas: Sequence[GeneratorReplica]) -> ActorLost:
    """What is said when all are out of restarts: of what the first of them died."""
    return ActorLost("; ".join(["no generator is left", *(f"{one.name}: {one.error}" for one in replicas[:1])]))
