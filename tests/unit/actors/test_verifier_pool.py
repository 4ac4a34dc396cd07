"""Responses are graded as long as one verifier lives, also where the node of a lost one does not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from rlep.actors.cluster import Cluster
from rlep.actors.verifiers import BATCH, VerifierPool
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ActorLost, PlacementError
from rlep.core.types import Asked, Completion, Prompt, Verdict
from tests.unit.actors.environment_scene import Scene, kills  # noqa: F401 - a fixture

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("kills")]

PROMPT = Prompt("p", "1 + 1", "2", np.zeros(1, np.int32))


class Grader:
    """A verifier that finds every response right."""

    async def ping(self) -> int:
        return 1

    async def start(self, config: VerifierConfig) -> None:
        pass

    async def grade(
        self, reference: str, texts: Sequence[str], truncated: Sequence[bool], asked: Asked
    ) -> list[Verdict]:
        return [Verdict("correct", reference, "math", "1")] * len(texts)

    async def close(self) -> None:
        pass


class Nodes(Scene):
    """A cluster that has room for so many actors in all: a lost one's node does not come back."""

    def __init__(self, room: int) -> None:
        super().__init__(Grader)
        self.room, self.refused, self.waits = room, 0, False

    async def place(self, kind: Any, name: str, role: Any) -> Any:
        if len(self.handles) == self.room:
            if self.waits:
                await asyncio.Future()  # for a node, as an autoscaler's
            self.refused += 1
            raise PlacementError(f"actor {name} was not placed within 60 s: no node has a CPU")
        return await super().place(kind, name, role)

    async def verifiers(self) -> VerifierPool:
        """One for each place, with three restarts."""
        pool = VerifierPool(cast(Cluster, self), VerifierConfig(count=self.room, restarts=3))
        await pool.start()
        return pool


async def graded(pool: VerifierPool, count: int) -> int:
    """Right ones among so many responses."""
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    completions = [Completion(f"r{n}", "p", n, *nothing, "stop", 0, "2") for n in range(count)]
    return sum(verdict.status == "correct" for verdict in await pool.grade(PROMPT, completions))


async def test_the_responses_of_a_verifier_whose_node_stays_away_go_to_another() -> None:
    scene = Nodes(2)
    pool = await scene.verifiers()
    scene.handles[0].kill()
    assert await graded(pool, 3 * BATCH) == 3 * BATCH
    assert scene.refused
    assert sum(event.startswith("actor_lost verifier-0") for event in scene.events) == 1
    await pool.close()


async def test_no_response_waits_for_the_place_of_a_lost_verifier() -> None:
    scene = Nodes(2)
    pool = await scene.verifiers()
    scene.waits = True
    scene.handles[0].kill()
    assert await graded(pool, 3 * BATCH) == 3 * BATCH
    assert [one.state for one in pool.status().actors] == ["placing", "serving"]
    await pool.close()


async def test_without_any_verifier_the_run_learns_why_none_was_placed() -> None:
    scene = Nodes(1)
    pool = await scene.verifiers()
    scene.handles[0].kill()
    said = (
        "no verifier is left; verifier-0 was lost and is out of restarts: actor verifier-0 was not placed within 60 s"
    )
    with pytest.raises(ActorLost, match=f"^{said}"):
        await graded(pool, 1)
    assert scene.refused == 3
    await pool.close()
