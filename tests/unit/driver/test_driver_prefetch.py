"""Bounded staleness: rollouts of later steps are prefetched within the bound, and nothing but the policy lag differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.config.schema import Config
from rlep.core.errors import DeadlineExceeded, StaleRolloutError
from rlep.core.jsonl import read_lines
from rlep.core.types import Completion, Prompt, Request, Sampling, SequenceBatch, UpdateOutcome
from rlep.driver.context import Step
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.wings.streamed import stream_step
from tests.unit.driver.driver_fakes import FakeGenerators, FakeLearner, Killed, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import TIS, G, M, P, config_of, prompt_set, prompts_of

TRAIN = prompt_set(10)
HELD_OUT = prompts_of(1, prefix="held", source="aime")
STEPS = 4


@dataclass(eq=False)
class Queued(FakeGenerators):
    """First in, first out over all steps, as the real queue; weights may change during a rollout."""

    partial: str = "keep"
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        await self.world.event("generate", requests[0].id.rsplit("/", 2)[0])
        async with self.turn:
            begun = self.version  # of all of them: the first half of each is generated at once
            for request in requests:
                for _ in range(6):  # turns of the event loop: so it hardly keeps up with the learner
                    await asyncio.sleep(0)
                await self.world.event("completion", request.id)
                answer = self.answer(request, sampling, self.version - self.stale)
                versions = np.full(len(answer.tokens), answer.policy_version, dtype=np.int32)
                if self.partial == "keep":
                    versions[: len(versions) // 2] = begun - self.stale
                yield replace(answer, policy_version=int(versions.min()), token_versions=versions)


def stale_config(bound: int, partial: str = "keep", **sections: dict[str, object]) -> Config:
    rollout = {"max_staleness": bound, "partial": partial}
    return config_of(rollout=rollout, loss=TIS, **sections)


@dataclass(eq=False)
class Patient(FakeLearner):
    """Updates only once the generators have nothing left to do."""

    generators: Queued | None = None

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        assert self.generators is not None
        async with self.generators.turn:  # behind all that wait for it
            pass
        return await super().update(batch, rollout=rollout, supervised=supervised)


def scene_with(config: Config, world: World | None = None, *, patient: bool = False) -> Scene:
    """A scene on queued generators whose pool has four answers to every prompt."""
    scene = scene_of(config, pool=filled_pool(world or World(), TRAIN.prompts))
    scene.generators = scene.weights.generators = Queued(scene.world, partial=config.rollout.partial)
    if patient:
        keep = config.update.stream
        scene.learner = Patient(scene.world, keep_start_weights=keep, generators=scene.generators)
        scene.weights.learner = scene.learner
    return scene


async def trained(directory: Path, scene: Scene) -> list[StepOutcome]:
    """A whole run, as a process of its own would make it, or what it did before it was killed."""
    outcomes: list[StepOutcome] = []
    with suppress(Killed):
        await run_into(outcomes, directory, scene)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return outcomes


async def run_into(outcomes: list[StepOutcome], directory: Path, scene: Scene) -> None:
    """A whole run, step by step into ``outcomes``."""

    async def train(step: Step, prompts: Sequence[Prompt]) -> StepOutcome:
        make = stream_step if scene.config.update.stream else run_step
        outcomes.append(await make(step, prompts))
        return outcomes[-1]

    await scene.train(directory, TRAIN, HELD_OUT, train)


def consumed(outcomes: Sequence[StepOutcome]) -> dict[int, list[tuple[str, list[str], list[str]]]]:
    """Step → (prompt, sample ids, content ids of its replays) in the order trained; of a step made twice the second."""
    return {
        outcome.step.number: [
            (group.prompt.id, [one.sample_id for one in group.fresh], [one.content_id for one in group.replays])
            for ready in outcome.mini_batches
            for group in ready.groups
        ]
        for outcome in outcomes
    }


def lags(outcomes: Sequence[StepOutcome]) -> list[list[int]]:
    """Of every fresh trajectory: the policy lag of each token when it was trained on."""
    return [
        [outcome.step.number - int(version) for version in one.token_versions]
        for outcome in outcomes
        for ready in outcome.mini_batches
        for group in ready.groups
        for one in group.fresh
        if one.token_versions is not None
    ]


@pytest.mark.parametrize("bound", [0, 1, 2, 9])
async def test_a_rollout_begins_with_the_step_that_its_bound_allows(tmp_path: Path, bound: int) -> None:
    config = stale_config(bound) if bound else config_of()
    scene = scene_with(config)
    outcomes = await trained(tmp_path, scene)
    for number in range(STEPS):
        began = scene.world.first(f"generate train/{number}")
        first = max(0, number - bound)
        assert scene.world.first(f"publish {first}") < began
        if first + 1 <= STEPS:
            assert began < scene.world.first(f"publish {first + 1}")
    updates = [at for at, entry in enumerate(scene.world.happened) if entry.startswith("update")]
    assert (scene.world.first("generate train/1") < updates[0]) == (bound > 0), "before the first update of step 0 ends"
    assert scene.world.count("completion") == STEPS * P * G + (2 + 2 + 4), "evaluations after 0, 2 and 4 steps"
    assert len(outcomes) == STEPS


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("partial", ["keep", "abort"])
@pytest.mark.parametrize(("bound", "patient"), [(1, False), (2, True)])
async def test_prompts_samples_and_replays_are_those_of_the_on_policy_run_and_no_token_is_too_old(
    tmp_path: Path, bound: int, patient: bool, partial: str, stream: bool
) -> None:
    strict = await trained(tmp_path / "strict", scene_with(config_of(update={"stream": stream})))
    config = stale_config(bound, partial, update={"stream": stream})
    outcomes = await trained(tmp_path / "stale", scene_with(config, patient=patient))
    assert consumed(outcomes) == consumed(strict)
    groups = [group for step in consumed(outcomes).values() for group in step]
    assert {(len(set(ids)), len(set(replays))) for _, ids, replays in groups} == {(G, M)}
    found = lags(outcomes)
    assert {lag for one in found for lag in one} <= set(range(bound + 1))
    largest = max(lag for one in found for lag in one)
    assert largest == bound if partial == "keep" else largest > 0
    crossed = sum(len(set(one)) > 1 for one in found)
    assert crossed == 0 if partial == "abort" else crossed > 0 or patient


async def test_metrics_are_those_of_a_slow_count(tmp_path: Path) -> None:
    outcomes = await trained(tmp_path, scene_with(stale_config(1)))
    lines = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    for outcome, metrics in zip(outcomes, lines, strict=True):
        flat = [lag for one in lags([outcome]) for lag in one]
        assert metrics["staleness/mean"] == pytest.approx(sum(flat) / len(flat))
        assert metrics["staleness/max"] == max(flat)
        assert metrics["staleness/stale"] == pytest.approx(sum(lag > 0 for lag in flat) / len(flat))
        weights = []
        for ready in outcome.mini_batches:
            at = 0
            for group in ready.groups:
                for number, member in enumerate(group.members):
                    for logprob in member.logprobs if member.logprobs is not None else ():
                        if number < G:  # the fake's sampler says -0.5 of every token
                            weights.append(min(exp(float(ready.current_logprobs[at]) - float(logprob)), 2.0))
                        at += 1
        assert metrics["correction/weight/fresh"] == pytest.approx(sum(weights) / len(weights))
        assert metrics["correction/truncated/fresh"] == 0.0  # exp(0.5) < 2
    assert lines[0]["staleness/max"] == 0
    assert max(metrics["staleness/stale"] for metrics in lines) > 0


async def test_an_on_policy_run_has_none_of_these_metrics(tmp_path: Path) -> None:
    await trained(tmp_path, scene_with(config_of()))
    names = {name.split("/")[0] for line in read_lines(tmp_path / "metrics.jsonl") for name in line["metrics"]}
    assert not names & {"staleness", "correction"}


async def test_what_is_older_than_the_bound_ends_the_run(tmp_path: Path) -> None:
    scene = scene_with(stale_config(1))
    scene.generators.stale = 2
    with pytest.raises(StaleRolloutError, match="rollout from policy -2, step trains 0 with staleness of at most 1"):
        await trained(tmp_path, scene)
    assert scene.world.count("update") == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kill_at", [3, 15, 30, 45, 60, 75, 90, 100])
async def test_a_killed_run_takes_up_the_same_prompts_samples_and_replays(tmp_path: Path, kill_at: int) -> None:
    undisturbed = await trained(tmp_path / "whole", scene_with(stale_config(2)))
    before = await trained(tmp_path / "killed", scene_with(stale_config(2), World(kill_at=kill_at)))
    done = len(before)
    assert done < STEPS
    after = await trained(tmp_path / "killed", scene_with(stale_config(2)))
    assert set(consumed(before)) | set(consumed(after)) == set(range(STEPS))
    assert consumed([*before, *after]) == consumed(undisturbed)
    assert {lag for one in lags(after) for lag in one} <= {0, 1, 2}


@pytest.mark.parametrize("lost", ["score/2", "update/1", "update/4", "update/7"])
async def test_nothing_that_was_prefetched_under_lost_weights_is_trained_on(tmp_path: Path, lost: str) -> None:
    scene = scene_with(stale_config(1))
    scene.world.lose_learner_at, scene.learner.restarts = (lost,), 1
    undisturbed = await trained(tmp_path / "whole", scene_with(stale_config(1)))
    outcomes = await trained(tmp_path / "lost", scene)
    assert consumed(outcomes) == consumed(undisturbed)
    assert {lag for one in lags(outcomes) for lag in one} <= {0, 1}
    happened = scene.world.happened
    event, number = lost.split("/")
    at = [index for index, entry in enumerate(happened) if entry.split()[0] == event][int(number)]
    back = next(index for index in range(at, len(happened)) if happened[index].startswith("publish"))
    restored = int(happened[back].split()[1])
    for later in range(restored, STEPS):
        again = sum(entry.startswith(f"completion train/{later}/") for entry in happened[back:])
        assert again == P * G, "all of its answers anew, although some were there"


async def test_a_prefetched_rollout_that_fails_ends_the_run_when_its_step_comes(tmp_path: Path) -> None:
    scene = scene_with(stale_config(1))
    inner = scene.generators.generate

    async def failing(requests: Sequence[Request], sampling: Sampling, **more: Any) -> AsyncIterator[Completion]:
        if requests[0].id.startswith("train/1/"):
            raise DeadlineExceeded("rollout: 12 of 12 completions missing")
        async for one in inner(requests, sampling, **more):
            yield one

    scene.generators.generate = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(DeadlineExceeded, match="12 of 12 completions missing"):
        await trained(tmp_path, scene)
    assert scene.weights.versions == [0, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("written", [1, 10, 20, 40])
async def test_cancellation_leaves_no_task(tmp_path: Path, written: int) -> None:
    scene = scene_with(stale_config(2))
    running = asyncio.create_task(run_into([], tmp_path, scene))
    while scene.world.count("completion") < written:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
