"""Environment actors in this process: what goes to them and comes back is pickled, and they die when they are killed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ActorDiedError

from rlep.actors.cluster import Cluster
from rlep.actors.environments import Call, EnvironmentPool
from rlep.actors.timeline import Timeline
from rlep.config.environment import EnvironmentConfig
from rlep.core.episodes import Observation
from rlep.core.waiting import silence


class Handle:
    """As Ray's: methods of ``actor``, of which ``answer`` is carried out ``times`` times, as where its answer was lost."""

    def __init__(self, name: str, actor: Any, times: int) -> None:
        self.name, self.actor, self.times = name, actor, times
        self.dead: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.messages: list[tuple[list[Call], list[int]]] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._called(method, pickle.dumps(given)))

    def kill(self) -> None:
        """End it: who waits for an answer is told."""
        if not self.dead.done():
            self.dead.set_exception(ActorDiedError())
            self.dead.exception()

    async def _called(self, method: str, given: bytes) -> Any:
        if method == "answer":
            self.messages.append(pickle.loads(given))
        times = self.times if method == "answer" else 1
        calls = [asyncio.ensure_future(getattr(self.actor, method)(*pickle.loads(given))) for _ in range(times)]
        whole = silence(asyncio.gather(*calls))
        await asyncio.wait([whole, self.dead], return_when=asyncio.FIRST_COMPLETED)
        if self.dead.done():
            whole.cancel()
            raise self.dead.exception() or AssertionError
        return pickle.loads(pickle.dumps((await whole)[-1]))


class Scripted:
    """An actor whose episodes answer a turn by its number, once ``gate`` says so."""

    def __init__(self) -> None:
        self.late: set[str] = set()
        """Texts that are not answered."""

    async def ping(self) -> int:
        return 1

    async def start(self, config: EnvironmentConfig, idle_s: float) -> list[dict[str, object]]:
        return []

    async def answer(self, calls: list[Call], over: list[int]) -> dict[int, Any]:
        """Begin with nothing, and repeat a text."""
        answers: dict[str, Callable[..., Any]] = {
            "begin": lambda *_: Observation(),
            "end": lambda _: None,
            "act": lambda _, text: Observation((text,)),
        }
        found = {place: answers[verb](*given) for place, (_, _, verb, given) in enumerate(calls)}
        ready = {place: answer for place, answer in found.items() if not {*calls[place][3]} & self.late}
        if not ready:
            await asyncio.Event().wait()
        return ready

    async def close(self) -> None:
        pass


class Scene:
    """A cluster of this process, and what happened on it."""

    def __init__(self, make: Callable[[], Any] = Scripted, times: int = 1) -> None:
        self.handles: list[Handle] = []
        self.events: list[str] = []
        self.failing_starts = 0
        self.timeline = Timeline()
        self._make, self._times = make, times

    async def place(self, kind: Any, name: str, role: Any) -> Handle:
        """Start an actor, or fail as often as ``failing_starts`` says."""
        self.handles.append(Handle(name, self._make(), self._times))
        if self.failing_starts:
            self.failing_starts -= 1
            self.handles[-1].kill()
        return self.handles[-1]

    def report(self, event: str, actor: str, error: str) -> None:
        self.events.append(f"{event} {actor}: {error}" if error else f"{event} {actor}")

    def forget(self, name: str) -> None:
        pass

    def waits_for(self, role: Any) -> str:
        return "waits"

    def pool(self, **keys: Any) -> EnvironmentPool:
        """Environments of the shipped game on this cluster, not started."""
        given = {"factory": "rlep.environments.guess_number:GuessNumber"} | keys
        return EnvironmentPool(cast(Cluster, self), EnvironmentConfig(**given), idle_s=600)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would refuse to kill an actor that is not its own, or to cancel its call."""
    monkeypatch.setattr(ray, "kill", lambda handle: handle.kill())
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
