"""An actor that is lost is started again and called again, as often as it has restarts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayError, WorkerCrashedError

from rlep.actors.supervised import Supervised
from rlep.core.errors import ActorLost, ConfigError

pytestmark = pytest.mark.asyncio


MONITOR = """
1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2) was 60.9GB used / 62.0GB limit

Refer to the documentation on how to address the out of memory issue: https://docs.ray.io
"""
LOSSES: dict[str, RayError] = {
    "memory": OutOfMemoryError(MONITOR),
    "node": NodeDiedError("Task failed due to the node dying."),
    "worker": WorkerCrashedError(),
    "answer": ObjectLostError("ab12", None, ""),
}
"""What Ray raises instead of the answer of an actor that is gone."""


class Scene:
    """Starts of an actor, each of which succeeds, fails, or gives one that is lost when it is called."""

    def __init__(self, *starts: str, restarts: int) -> None:
        self._starts = list(starts)
        self.events: list[str] = []
        self.actor = Supervised(
            "pool",
            self.start,
            restarts=restarts,
            heartbeat_timeout_s=60,
            report=lambda event, actor, error: self.events.append(f"{event} {error}".strip()),
        )

    async def start(self) -> Any:
        outcome = self._starts.pop(0)
        if outcome == "fails":
            raise ActorLost("it did not start")
        if outcome == "refuses":
            raise ConfigError("generator.threads = 9: this node has 2 CPUs")

        async def count(question: str) -> int:
            if outcome == "lost":
                raise ActorLost("it died")
            if outcome in LOSSES:
                raise LOSSES[outcome]
            return len(question)

        return SimpleNamespace(count=SimpleNamespace(remote=count))


@pytest.fixture(autouse=True)
def kills(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ray would refuse to kill an actor that is not its own, or to cancel its call."""
    killed: list[Any] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    return killed


async def test_a_lost_actor_is_ended_and_called_again_and_a_start_that_fails_costs_a_restart(kills: list[Any]) -> None:
    scene = Scene("lost", "fails", "works", restarts=2)
    assert await scene.actor.call("count", "four", deadline_s=60) == 4
    assert (scene.actor.restarts, scene.actor.restarts_left, len(kills)) == (2, 0, 1)
    assert scene.events == ["actor_lost it died", "actor_restarted"]


@pytest.mark.parametrize("loss", LOSSES)
async def test_whatever_ray_calls_the_loss_the_actor_is_started_again(loss: str) -> None:
    scene = Scene(loss, "works", restarts=1)
    assert await scene.actor.call("count", "four", deadline_s=60) == 4
    lost, again = scene.events
    assert (scene.actor.restarts, again) == (1, "actor_restarted")
    assert lost.startswith("actor_lost pool.count: ")


async def test_an_actor_that_the_memory_monitor_ended_is_lost_with_the_numbers_and_not_with_the_advice() -> None:
    scene = Scene("memory", restarts=0)
    with pytest.raises(ActorLost):
        await scene.actor.call("count", "four", deadline_s=60)
    said = f"pool.count: {MONITOR.splitlines()[1]}"
    assert scene.events == [f"actor_lost pool was lost and is out of restarts: {said}"]


async def test_a_start_that_refuses_a_setting_is_not_tried_again() -> None:
    scene = Scene("lost", "refuses", "works", restarts=3)
    with pytest.raises(ConfigError, match=r"^generator\.threads = 9"):
        await scene.actor.call("count", "four", deadline_s=60)
    with pytest.raises(
        ActorLost, match=r"^pool cannot be started again: generator\.threads = 9: this node has 2 CPUs$"
    ):
        await scene.actor.call("count", "four", deadline_s=60)
    assert scene.actor.out_of_restarts


@pytest.mark.parametrize("second", ["lost", "fails"])
async def test_without_a_restart_left_every_call_says_of_what_it_died(second: str) -> None:
    scene = Scene("lost", second, restarts=1)
    with pytest.raises(ActorLost):
        await scene.actor.call("count", "four", deadline_s=60)
    assert scene.actor.out_of_restarts
    cause = "it died" if second == "lost" else "it did not start"
    with pytest.raises(ActorLost, match=f"^pool was lost and is out of restarts: {cause}$"):
        await scene.actor.call("count", "four", deadline_s=60)


async def test_the_first_start_is_not_tried_again() -> None:
    scene = Scene("fails", "works", restarts=3)
    with pytest.raises(ActorLost, match="it did not start"):
        await scene.actor.call("count", "four", deadline_s=60)
    assert (scene.actor.restarts_left, scene.events) == (3, [])


async def test_calls_at_once_start_one_actor() -> None:
    scene = Scene("works", restarts=0)
    calls = [scene.actor.call("count", text, deadline_s=60) for text in ("a", "bc")]
    assert await asyncio.gather(*calls) == [1, 2]
