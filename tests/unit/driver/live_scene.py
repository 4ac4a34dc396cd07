"""Runs with live replay over the fakes: a policy with few answers, and a pool that outlives its drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlep.config.schema import Config
from rlep.core.seeds import generator_for
from rlep.core.types import AddReport, Completion, Prompt, Request, Sampling, Trajectory, Verdict
from rlep.data.prompts import PromptSet
from rlep.driver.live_replay import LiveReplay
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.train import Training
from rlep.launch.wings import choose_step, rollouts
from tests.unit.driver.driver_fakes import (
    FakeGenerators,
    FakeVerifiers,
    Scene,
    World,
    data_of,
    filled_pool,
    scene_of,
)
from tests.unit.driver.driver_values import batch_bytes, config_of, prompt_set, prompts_of

TRAIN = prompt_set(6)  # four a step: every prompt is seen again in the next step or the one after it
HELD_OUT = prompts_of(1, prefix="held", source="aime")
STEPS, PROMPTS = 6, 4

Stored = dict[str, dict[str, Trajectory]]


@dataclass(eq=False)
class FakeLivePool:
    """What a Redis keeps while drivers come and go; ``stored`` outlives them."""

    world: World
    stored: Stored = field(default_factory=dict)
    removed: int = 0

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        half = len(trajectories) // 2
        for part in (trajectories[:half], trajectories[half:]):  # a kill may come between the two
            await self.world.event("insert", len(part))
            for member in part:
                self.stored.setdefault(member.prompt_id, {}).setdefault(member.content_id, member)
        await self.world.event("inserted")
        return AddReport(len(trajectories), 0, ())

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[Trajectory]]:
        await self.world.event("fetch", sum(map(len, wanted.values())))
        return {prompt_id: [self.stored[prompt_id][one] for one in ids] for prompt_id, ids in wanted.items()}

    async def contents(self, prompt_ids: Sequence[str] | None = None) -> Mapping[str, Sequence[str]]:
        await self.world.event("contents")
        return {prompt_id: sorted(members) for prompt_id, members in self.stored.items() if members}

    async def remove(self, prompt_id: str, content_ids: Sequence[str]) -> int:
        await self.world.event("remove", len(content_ids))
        there = [self.stored.get(prompt_id, {}).pop(one, None) is not None for one in content_ids]
        self.removed += sum(there)
        return sum(there)

    async def sample(self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int) -> NoReturn:
        raise AssertionError("live replay draws by itself")

    async def digest(self) -> NoReturn:
        raise AssertionError("a live pool changes with every step")


@dataclass(eq=False)
class FewAnswers(FakeGenerators):
    """A policy with a dozen different responses to a question, so that the same ones come again."""

    def answer(self, request: Request, sampling: Sampling, version: int) -> Completion:
        draw = generator_for(request.seed, "policy", self.weights.hex())
        tokens = np.array([*draw.integers(0, 12, size=1), 7], dtype=np.int32)
        text = "right" if tokens[0] % 3 else "wrong"
        logprobs = np.full(2, -0.5, dtype=np.float32)
        return Completion(request.id, request.prompt_id, request.sample, tokens, logprobs, "stop", version, text)


@dataclass(eq=False)
class Recording(FakeVerifiers):
    """Keeps what it said of training prompts."""

    graded: list[tuple[str, bool]] = field(default_factory=list)
    """Prompt id, and whether a response was correct."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        verdicts = await super().grade(prompt, completions)
        if prompt in TRAIN.prompts:
            self.graded.append((prompt.id, any(one.status == "correct" for one in verdicts)))
        return verdicts


def live_config(**sections: Mapping[str, Any]) -> Config:
    """Live replay with two responses a question, so that some leave V at almost every step."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"steps": STEPS},
        "replay": {"source": "live", "minimum": 1, "per_question": 2},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 1, "keep": 1},
    }
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | dict(values)
    return config_of(**tree)


@dataclass(eq=False)
class Lived:
    """One process of a run."""

    scene: Scene
    pool: FakeLivePool
    live: LiveReplay
    graded: list[tuple[str, bool]]


async def trained(
    directory: Path, config: Config, stored: Stored, kill_at: int | None = None, *, train: PromptSet = TRAIN
) -> Lived:
    """Train as a process of its own would, over a pool that may have been filled before."""
    world = World(kill_at=kill_at)
    offline = filled_pool(world, TRAIN.prompts, 3) if config.replay.source == "both" else None
    scene = scene_of(config, pool=offline)
    scene.world = scene.learner.world = scene.weights.world = scene.verifiers.world = world
    scene.generators, scene.verifiers = FewAnswers(world), (recording := Recording(world))
    scene.weights.generators = scene.generators
    pool = FakeLivePool(world, stored)
    live = LiveReplay(config, pool, directory, offline)
    store = RunDirectory(directory, config, Facts("train", "model", "tok", train.digest))
    trainers = replace(scene.trainers, rollouts=rollouts(scene.run, train), pool=live)
    try:
        data = data_of(train, HELD_OUT)
        make = choose_step(config)
        await Training(scene.run, trainers, data, store, make, live=live, after=[live.learn]).run()
    finally:
        store.close()
    return Lived(scene, pool, live, recording.graded)


def batches(lived: Lived) -> list[bytes]:
    return [batch_bytes(batch) for batch in lived.scene.learner.batches]
