"""Whoever is slow, generation waits for it: what is held between the roles stays within one step, or two waves."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlep.core.types import (
    AddReport,
    Completion,
    Float32Array,
    Prompt,
    Request,
    Sampling,
    SequenceBatch,
    Trajectory,
    UpdateOutcome,
)
from rlep.core.types import Verdict as Judged
from rlep.driver import collect
from rlep.driver.collect import Collector
from rlep.driver.run_directory import Facts, RunDirectory
from tests.unit.driver.driver_fakes import (
    FakeGenerators,
    FakeLearner,
    FakePool,
    FakeVerifiers,
    Scene,
    World,
    filled_pool,
    scene_of,
)
from tests.unit.driver.driver_values import TIS, B, G, P, config_of, prompt_set

STEPS = 5
SLOW_FROM = 2
"""The step in which a role stops until it may go on."""
TRAIN = prompt_set(P)
TURNS = 2000
"""Turns of the event loop after which fakes that could do something have done it: a whole step takes some hundred."""


@dataclass(eq=False)
class Flow:
    """What went from role to role, how much was held at most, and the role that stops."""

    slow: str = ""
    after: int = 0
    """Calls of that role that go through before it stops."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    passed: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def count(self, what: str, number: int) -> None:
        """So many answers were ``asked``, ``written``, ``judged`` or ``trained`` on."""
        self.passed[what] += number
        stages = ("asked", "written", "judged", "trained")
        for before, after in itertools.pairwise(stages):
            held = self.passed[before] - self.passed[after]
            self.most[after] = max(self.most[after], held)

    async def work(self, role: str) -> None:
        """A call of ``role``: it stops where it is the slow one."""
        self.calls[role] += 1
        if role == self.slow and self.calls[role] > self.after:
            self.reached.set()
            await self.go_on.wait()


@dataclass(eq=False)
class CountedGenerators(FakeGenerators):
    flow: Flow = field(default_factory=Flow)

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        self.flow.count("asked", len(requests))
        async for completion in super().generate(requests, sampling, deadline_s=deadline_s):
            self.flow.count("written", 1)
            yield completion


@dataclass(eq=False)
class CountedVerifiers(FakeVerifiers):
    flow: Flow = field(default_factory=Flow)

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Judged]:
        await self.flow.work("verifier")
        verdicts = await super().grade(prompt, completions)
        self.flow.count("judged", len(verdicts))
        return verdicts


@dataclass(eq=False)
class CountedLearner(FakeLearner):
    flow: Flow = field(default_factory=Flow)

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        await self.flow.work("score")
        return await super().score(batch, rollout=rollout)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        await self.flow.work("update")
        outcome = await super().update(batch, rollout=rollout, supervised=supervised)
        assert batch.replayed is not None
        self.flow.count("trained", int((~batch.replayed).sum()))
        return outcome


@dataclass(eq=False)
class CountedPool(FakePool):
    flow: Flow = field(default_factory=Flow)

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        await self.flow.work("pool")
        return await super().sample(prompt_ids, count, seed=seed, step=step)

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        await self.flow.work("pool")
        return await super().add(trajectories)


def scene_with(flow: Flow, *, stream: bool = False, prefetched: int = 0) -> Scene:
    """Fakes that count; the pool has answers to every prompt of a step."""
    world = World()
    config = config_of(
        run={"steps": STEPS},
        rollout={"max_staleness": prefetched},
        loss=TIS if prefetched else {},
        update={"stream": stream},
        evaluation={"every": 0},
    )
    scene = scene_of(config, pool=CountedPool(world, filled_pool(world, TRAIN.prompts).stored, flow=flow))
    scene.generators = CountedGenerators(world, flow=flow)
    scene.verifiers = CountedVerifiers(world, flow=flow)
    scene.learner = CountedLearner(world, keep_start_weights=stream, flow=flow)
    scene.weights.learner, scene.weights.generators = scene.learner, scene.generators
    return scene


async def stopped(flow: Flow, **expected: int) -> None:
    """The slow role has stopped, and the others come to what is ``expected`` and, given time, no further."""
    await asyncio.wait_for(flow.reached.wait(), 60)
    with suppress(TimeoutError):  # the comparison below reports it
        async with asyncio.timeout(60):
            while flow.passed != Counter(expected):  # noqa: ASYNC110 - checkpoints are written by threads
                await asyncio.sleep(0.01)
    for _ in range(TURNS):  # no time but turns of the loop: the fakes do in a few whatever they may still do
        await asyncio.sleep(0)
    assert flow.passed == Counter(expected)


@pytest.mark.parametrize(("stream", "prefetched"), [(False, 0), (True, 0), (False, 1), (True, 1)])
@pytest.mark.parametrize(
    ("slow", "calls"), [("verifier", P), ("score", P // B), ("update", P // B), ("pool", 1)], ids=str
)
async def test_no_answer_of_the_next_step_is_asked_for_while_a_role_is_behind(
    tmp_path: Path, slow: str, calls: int, stream: bool, prefetched: int
) -> None:
    flow = Flow(slow, after=SLOW_FROM * calls)
    running = asyncio.create_task(scene_with(flow, stream=stream, prefetched=prefetched).train(tmp_path, TRAIN))
    step = P * G
    asked = (SLOW_FROM + 1 + prefetched) * step  # with prefetched rollouts: of that many more steps, and no more
    judged = SLOW_FROM * step if slow == "verifier" else asked
    await stopped(flow, asked=asked, written=asked, judged=judged, trained=SLOW_FROM * step)
    flow.go_on.set()
    await asyncio.wait_for(running, 60)
    assert flow.passed == dict.fromkeys(("asked", "written", "judged", "trained"), STEPS * step)
    # At most so many steps' answers are asked for, without a verdict, or verified and not trained on.
    assert max(flow.most.values()) <= (1 + prefetched) * step
    assert flow.most["written"] >= step  # all at once: within a step generators are not held back


@pytest.mark.parametrize("slow", ["verifier", "pool"])
async def test_a_collection_asks_for_two_waves_at_a_time(
    tmp_path: Path, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "CHUNK", 2)
    flow, samples, prompts = Flow(slow), 4, prompt_set(10).prompts
    scene = scene_with(flow)
    store = RunDirectory(tmp_path, scene.config, Facts("collect", "model", "tok", "data"))
    assert scene.pool is not None
    running = asyncio.create_task(Collector(scene.run, scene.pool, store, prompts).run())
    waves = 2 * 2 * samples
    await stopped(flow, asked=waves, written=waves, judged=0 if slow == "verifier" else waves)
    flow.go_on.set()
    collected = await asyncio.wait_for(running, 60)
    store.close()
    assert collected.candidates == flow.passed["judged"] == 10 * samples
    assert flow.most["written"] <= waves
    assert flow.most["judged"] <= waves
