"""Generators and learner that time-share devices: whole runs, every order, and what fails on the way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.core.errors import DeadlineExceeded, LearnerLost, WeightSyncError
from rlep.driver.context import Roles, Run, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.train import Training
from rlep.driver.wings.colocated import (
    SideName,
    TimeSharedGenerators,
    TimeSharedLearner,
    TimeSharedWeights,
    TimeSharing,
)
from rlep.launch.wings import choose_step
from tests.unit.driver.driver_fakes import Scene, World, data_of, filled_pool, scene_of
from tests.unit.driver.driver_values import batch_bytes, config_of, prompt_set, prompts_of

pytestmark = pytest.mark.asyncio

TRAIN = prompt_set(10)
HELD_OUT = prompts_of(1, prefix="held", source="aime")
NEEDS = dict.fromkeys(("generate", "completion", "take"), "generators")
NEEDS |= dict.fromkeys(("score", "update", "save", "load", "offer"), "learner")
"""Event → who must have the devices' memory, alone."""


@dataclass(eq=False)
class Devices(World):
    """A world in which nobody works without the devices' memory, or while the other has it too."""

    has: set[str] = field(default_factory=lambda: {"learner"})
    fails: list[str] = field(default_factory=list)
    """Events that fail, each once."""

    async def event(self, name: str, detail: object = "") -> None:
        wanted = NEEDS.get(name)
        for _ in range(2 if wanted else 0):
            assert self.has == {wanted}, f"{name} while the memory is with {self.has}"
            await asyncio.sleep(0)
        await super().event(name, detail)
        if name in self.fails:
            self.fails.remove(name)
            raise LearnerLost(name) if "learner" in name else WeightSyncError(name)


@dataclass(eq=False)
class FakeSide:
    """One of the two; takes and gives its memory."""

    world: Devices
    name: SideName

    async def sleep(self) -> None:
        if self.name in self.world.has:
            await self.world.event(f"{self.name}-sleep")
            self.world.has.discard(self.name)

    async def wake(self) -> None:
        if self.name not in self.world.has:
            await self.world.event(f"{self.name}-wake")
            self.world.has.add(self.name)


@dataclass(eq=False)
class Handover:
    """The scene's weights in two parts; to be taken they need the generators awake, which only ``take`` does."""

    scene: Scene
    world: Devices
    wakes: Callable[[], Any]

    async def offer(self, version: int) -> int:
        await self.world.event("offer", version)
        return version

    async def take(self, offer: int) -> float:
        await self.wakes()
        await self.world.event("take", offer)
        return await self.scene.weights.publish(offer)


def time_shared(scene: Scene, world: Devices) -> tuple[Run, Trainers]:
    """The scene's actors on shared devices."""
    sharing = TimeSharing(deadline_s=30)
    generators, learner = FakeSide(world, "generators"), FakeSide(world, "learner")
    for side in (generators, learner):
        sharing.join(side.name, sleep=side.sleep, wake=side.wake)
    handover = Handover(scene, world, generators.wake)
    weights = TimeSharedWeights(handover.offer, handover.take, sharing)
    run = replace(scene.run, roles=Roles(TimeSharedGenerators(scene.generators, sharing), scene.verifiers))
    return run, Trainers(TimeSharedLearner(scene.learner, sharing), weights, OnPolicyRollouts(run), scene.pool)


async def train(directory: Path, scene: Scene, world: Devices | None) -> tuple[list[bytes], bytes]:
    """The batches trained on and the last weights; time-shared where the scene's world has devices."""
    store = RunDirectory(directory, scene.config, Facts("train", "model", "tok", TRAIN.digest))
    run, trainers = (scene.run, scene.trainers) if world is None else time_shared(scene, world)
    try:
        data = data_of(TRAIN, HELD_OUT)
        await Training(run, trainers, data, store, choose_step(scene.config)).run()
    finally:
        store.close()
    return [batch_bytes(batch) for batch in scene.learner.batches], scene.learner.state


def scene_in(world: World, order: int | None = None, **sections: Any) -> Scene:
    return scene_of(config_of(**sections), pool=filled_pool(world, TRAIN.prompts), order=order)


@pytest.mark.parametrize("order", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_run_on_shared_devices_trains_on_what_a_run_on_own_devices_does(
    tmp_path: Path, order: int | None, dynamic: bool
) -> None:
    sections = {"rollout": {"dynamic_sampling": dynamic}, "replay": {"count": 2}}
    world = Devices()
    apart = await train(tmp_path / "apart", scene_in(World(), order, **sections), None)
    together = await train(tmp_path / "together", scene_in(world, order, **sections), world)
    assert together == apart
    # 4 steps: each sleep of the generators is followed by the learner's waking, and the other way round.
    passes = [entry.split()[0] for entry in world.happened if "-" in entry.split()[0]]
    assert passes[0] == "learner-sleep"
    for before, after in itertools.pairwise(passes):
        assert before != after
        assert {"learner-sleep": "generators-wake", "generators-sleep": "learner-wake"}.get(before, after) == after


@pytest.mark.parametrize("lost", ["score/0", "update/3", "save/1", "offer/2"])
async def test_a_lost_learner_is_restarted_on_its_devices_and_the_run_ends_as_undisturbed(
    tmp_path: Path, lost: str
) -> None:
    _, expected = await train(tmp_path / "whole", scene_in(World()), None)
    world = Devices(lose_learner_at=(lost,))
    scene = scene_in(world)
    scene.learner.restarts = 1
    _, state = await train(tmp_path / "lost", scene, world)
    assert state == expected
    assert scene.learner.restarts == 0


@pytest.mark.parametrize("failing", ["learner-sleep", "learner-wake"])
async def test_a_learner_that_cannot_let_go_or_come_back_is_lost_and_started_again(
    tmp_path: Path, failing: str
) -> None:
    _, expected = await train(tmp_path / "whole", scene_in(World()), None)
    world = Devices(fails=[failing])
    scene = scene_in(world)
    scene.learner.restarts = 1
    _, state = await train(tmp_path / "lost", scene, world)
    assert (state, scene.learner.restarts) == (expected, 0)


def free(world: Devices, deadline_s: float = 30) -> TimeSharing:
    sharing = TimeSharing(deadline_s)
    for side in (FakeSide(world, "generators"), FakeSide(world, "learner")):
        sharing.join(side.name, sleep=side.sleep, wake=side.wake)
    return sharing


async def test_generators_that_do_not_wake_leave_the_devices_to_the_next_call() -> None:
    world = Devices(fails=["generators-wake"])
    sharing = free(world)
    with pytest.raises(WeightSyncError, match="generators-wake"):
        async with sharing.of("generators"):
            raise AssertionError
    async with sharing.of("learner"):
        assert world.has == {"learner"}
    async with sharing.of("generators"):
        assert world.has == {"generators"}


async def test_a_side_that_stays_busy_is_an_error_that_names_it() -> None:
    world = Devices()
    sharing = free(world, deadline_s=0.05)
    async with sharing.of("generators"):
        with pytest.raises(DeadlineExceeded, match=r"the learner waited 0 s for the generators to release"):
            async with sharing.of("learner"):
                raise AssertionError
        assert world.has == {"generators"}


async def test_a_side_that_hangs_in_its_sleep_is_an_error_after_the_deadline() -> None:
    sharing = free(Devices(), deadline_s=0.05)

    async def hang() -> None:
        await asyncio.Event().wait()

    sharing.join("learner", sleep=hang, wake=hang)
    with pytest.raises(DeadlineExceeded, match="the generators waited 0 s for the learner"):
        async with sharing.of("generators"):
            raise AssertionError


async def test_work_that_joins_its_side_does_not_wait_behind_the_other_side() -> None:
    sharing = free(Devices())
    began, may_end = asyncio.Event(), asyncio.Event()

    async def rollout() -> None:
        async with sharing.of("generators"):
            began.set()
            await may_end.wait()

    async def score() -> None:
        async with sharing.of("learner"):
            assert may_end.is_set()

    writing = asyncio.create_task(rollout())
    await began.wait()
    waiting = asyncio.create_task(score())
    for _ in range(5):
        await asyncio.sleep(0)
    async with sharing.of("generators", wake=False):  # a lost generator, without which the rollout would never end
        may_end.set()
    await asyncio.gather(writing, waiting)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_in_whatever_order_one_side_has_the_memory_and_works(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = Devices()
    sharing = free(world)

    async def work(name: SideName, before: int, during: int, *, given_up: bool) -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        async with sharing.of(name):
            for _ in range(during):
                assert world.has == {name}
                await asyncio.sleep(0)
            if given_up:
                raise KeyError(name)

    sides: list[SideName] = ["generators", "learner"]
    drawn = [(sides[rng.integers(2)], int(rng.integers(12)), int(rng.integers(12))) for _ in range(30)]
    tasks = [asyncio.create_task(work(*times, given_up=bool(rng.random() < 0.2))) for times in drawn]
    for task in tasks:
        if rng.random() < 0.2:
            await asyncio.sleep(0)
            task.cancel()
    async with asyncio.timeout(20):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in ended} <= {type(None), KeyError, asyncio.CancelledError}
    async with sharing.of("learner"):
        assert world.has == {"learner"}


@pytest.mark.parametrize("events", range(0, 12, 2))
async def test_told_to_stop_in_a_rollout_the_learner_wakes_and_saves(tmp_path: Path, events: int) -> None:
    world = Devices()
    training = asyncio.create_task(train(tmp_path, scene_in(world, checkpoint={"every": 100}), world))
    begun: int | None = None
    while begun is None or len(world.happened) < begun + events:
        assert not training.done()
        await asyncio.sleep(0)
        if begun is None and "sample 1" in world.happened:
            begun = len(world.happened)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert world.happened[world.happened.index("save") - 1] == "learner-wake"
