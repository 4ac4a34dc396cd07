"""Generators whose actors are scripted: every method is a coroutine of this process, and a kill is noticed at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import ray
from ray.exceptions import ActorDiedError

from rlep.actors.generators import GeneratorPool
from rlep.actors.timeline import Timeline
from rlep.config.settings import parse_config
from rlep.core.errors import ActorLost, RlepError, WeightSyncError
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import SamplerHealth
from rlep.engines.weights.weight_update import BroadcastGroup, SharedMemoryWeights, WeightUpdate

NO_TOKENS = np.zeros(0, dtype=np.int32)


class ScriptedActor:
    """An actor that answers when ``answers`` is set, until it is killed."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self.name = scene, name
        self.answers = asyncio.Event()
        self.dead = asyncio.Event()
        self.version: int | None = None
        self.taken: list[str] = []
        self.ends_without: set[str] = set()
        """Requests that a stream ends without, once."""

    def __getattr__(self, method: str) -> Any:
        def remote(*args: object) -> Awaitable[object]:
            return self._call(getattr(self, f"do_{method}"), *args)

        return SimpleNamespace(remote=remote, options=lambda **_: SimpleNamespace(remote=self.do_generate))

    async def _call(self, work: Callable[..., Awaitable[object]], *args: object) -> object:
        if self.dead.is_set():
            raise ActorDiedError()
        return await work(*args)

    async def do_start(self, number: int, deadline_s: float) -> None:
        """Refuse to start when the scene says so."""
        if self._scene.failing_starts:
            self._scene.failing_starts -= 1
            raise ActorLost(f"{self.name} did not start")

    async def do_serve_base(self, version: int) -> None:
        """Serve the model directory."""
        self.version = version

    async def do_load(self, number: int, weight_update: WeightUpdate) -> float:
        """Load, unless refusals are left."""
        if self._scene.refusals:
            self._scene.refusals -= 1
            raise self._scene.refusal(f"{self.name} refuses {weight_update.version}")
        self.version = weight_update.version
        return 1e-6

    async def do_sleep(self, number: int) -> None:
        """Free nothing."""
        self.version = None

    async def do_health(self) -> SamplerHealth:
        """Live, with the next of the scene's answers about the KV cache."""
        use, preempted = next(self._scene.caches, (0.0, 0))
        return SamplerHealth(use, preempted)

    async def do_close(self) -> None:
        """End."""

    async def do_abandon(self, requests: Sequence[str]) -> None:
        """Answer none of these."""
        self.ends_without |= set(requests)

    async def do_generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[Awaitable[object]]:
        """Answer all requests at once when the test says so."""
        self.taken += [request.id for request in requests]
        waits = [asyncio.create_task(event.wait()) for event in (self.answers, self.dead)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        wanted = [request for request in requests if request.id not in self.ends_without]
        self.ends_without -= {request.id for request in requests}

        async def batch() -> list[Completion]:
            if self.dead.is_set():
                raise ActorDiedError()
            version = -1 if self.version is None else self.version
            return [
                Completion(r.id, r.prompt_id, r.sample, NO_TOKENS, np.zeros(0, np.float32), "stop", version, self.name)
                for r in wanted
            ]

        if wanted or self.dead.is_set():
            yield batch()


class Scene:
    """A pool over scripted actors."""

    def __init__(self, transfer: str = "gloo", restarts: int = 3, **rollout: object) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.caches: Iterator[tuple[float, int]] = iter(())
        self.failing_starts = self.refusals = self.asked = 0
        self.refusal: type[RlepError] = WeightSyncError
        self.places = asyncio.Event()
        self.places.set()
        cluster = SimpleNamespace(
            report=lambda *event: self.events.append(event),
            timeline=Timeline(),
            forget=lambda _: None,
            home=None,
            reserve=lambda name, _: name,
            place=self._place,
            waits_for=self._waits_for,
        )
        generator = {"transfer": transfer, "restarts": restarts, "max_sequences": 4, "transfer_deadline_s": 0.2}
        config = parse_config({"generator": generator}).with_values(rollout=rollout)
        self.pool = GeneratorPool(cast(Any, cluster), config, Path("model"), lease_s=60)

    def _waits_for(self, _: object) -> str:
        self.asked += 1
        return "waits for a place"

    async def _place(self, kind: object, name: str, *_: object, slot: object) -> Any:
        await self.places.wait()
        return ScriptedActor(self, name)

    def actor(self, number: int) -> ScriptedActor:
        """The present actor of a generator."""
        actor = self.pool.replicas[number].actor.living
        assert actor is not None
        return cast(ScriptedActor, actor)

    async def answers(self, *names: str, deadline_s: float = 0.5) -> dict[str, tuple[str, int]]:
        """Roll out these requests: who answered each, under which version."""
        requests = [Request(name, "prompt", NO_TOKENS, 0, seed=1) for name in names]
        rollout = self.pool.generate(requests, Sampling(max_tokens=4), deadline_s=deadline_s)
        return {answer.request_id: (answer.text, answer.policy_version) async for answer in rollout}


@pytest.fixture(autouse=True)
def kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would refuse to kill an actor that is not its own."""

    def kill(actor: ScriptedActor) -> None:
        actor.dead.set()

    monkeypatch.setattr(ray, "kill", kill)


def in_memory(version: int) -> WeightUpdate:
    """A publication through shared memory."""
    return WeightUpdate(version, (), SharedMemoryWeights(Path("weights"), 0, ""), (), 1e-4, ())


def in_group(version: int) -> WeightUpdate:
    """A part in a transfer."""
    return WeightUpdate(version, (), BroadcastGroup("gloo", "::1", 1, "token", 1, 2, 5.0), (), 1e-4, ())
