"""Streamed steps on real parts: the answers of synchronous steps, given again, lead to the same weights to the bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.verifiers import VerifierPool
from rlep.actors.weight_sync import WeightPublisher
from rlep.cli.progress import TerminalProgress
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import Completion, Float32Array, Reissued, Request, Sampling, SequenceBatch, UpdateOutcome
from rlep.data.prompts import PromptSet
from rlep.driver.context import Run, Step
from rlep.driver.ports import Roles, Trainers
from rlep.driver.step import StepOutcome, run_step
from rlep.launch.compose import read_inputs, stage
from tests.small import BASE, FRESH, PER_UPDATE, PROMPTS, contents, small_task

STEPS = 2
IN_FLIGHT = 6


@dataclass(eq=False)
class Answers:
    """Real generators; ``again`` gives their answers again, those of later sets only once the first update was made."""

    inner: GeneratorPool
    updated: asyncio.Event = field(default_factory=asyncio.Event)
    again: bool = False
    held: int = 0
    """Most requests that one generator held at any completion."""
    known: dict[str, Completion] = field(default_factory=dict)

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self.inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        if self.again:
            for number, request in enumerate(requests):
                if number == PER_UPDATE * FRESH:
                    await self.updated.wait()
                yield self.known[request.id]
            return
        async for one in self.inner.generate(requests, sampling, deadline_s=deadline_s):
            self.held = max(self.held, *(self.inner._queue.leased(f"generator-{index}") for index in range(2)))
            self.known[one.request_id] = one
            yield one


@dataclass(eq=False)
class Watched:
    """The real learner; says when an update was made, and in which order it was asked."""

    inner: Learners
    updated: asyncio.Event
    asked: list[str] = field(default_factory=list)

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        self.asked.append("score")
        return await self.inner.score(batch, rollout=rollout)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        self.asked.append("update")
        outcome = await self.inner.update(batch, rollout=rollout, supervised=supervised)
        self.updated.set()
        return outcome

    async def save(self, directory: Path) -> None:
        await self.inner.save(directory)

    async def written(self) -> None:
        await self.inner.written()

    async def load(self, directory: Path) -> None:
        await self.inner.load(directory)

    async def restart(self) -> None:
        await self.inner.restart()


@dataclass(eq=False)
class Cast:
    """Real actors behind the two that watch."""

    config: Config
    prompts: PromptSet
    generators: Answers
    verifiers: VerifierPool
    learner: Watched
    weights: WeightPublisher

    async def step(self, number: int, stream: str) -> StepOutcome:
        """A step on the same prompts whatever its number."""
        self.generators.updated.clear()
        config = self.config.model_copy(update={"update": self.config.update.model_copy(update={"stream": stream})})
        run = Run(config, Roles(self.generators, self.verifiers), TerminalProgress(), "tok", "base", "float32")
        step = Step(run, Trainers(self.learner, self.weights, None), number, 0, lambda *_: ())
        return await run_step(replace(step, in_flight=IN_FLIGHT), self.prompts.prompts[:PROMPTS])

    async def save(self, home: Path) -> None:
        """Weights and optimizer state into a new directory."""
        await asyncio.to_thread(home.mkdir)
        await self.learner.save(home)
        await self.learner.written()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_streamed_steps_end_with_the_weights_of_synchronous_ones_to_the_bit(tmp_path: Path, ranks: int) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=streamed", "cluster.cpus=4"]
    # Rewards that fall with every token: each group has a gradient, whatever the base model gets right.
    overrides += ["update.lr=1e-3", "reward.overlong_buffer=47"]
    config = load_config([BASE], [*overrides, "generator.count=2", f"learner.ranks={ranks}"])
    inputs = read_inputs(config)
    assert inputs.train is not None
    async with stage(config) as actors:
        generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        answers = Answers(generators)
        cast = Cast(config, inputs.train, answers, verifiers, Watched(learners, answers.updated), weights)
        await cast.save(tmp_path / "start")
        await weights.publish(0)
        synchronous = [await cast.step(number, "off") for number in range(STEPS)]
        await cast.save(tmp_path / "synchronous")
        assert 0 < answers.held <= IN_FLIGHT / 2, "each of two generators holds its share"
        await cast.learner.load(tmp_path / "start")
        await weights.publish(0)
        answers.again = True
        cast.learner.asked.clear()
        streamed = [await cast.step(number, "fixed") for number in range(STEPS)]
        assert cast.learner.asked == ["score", "update"] * (STEPS * PROMPTS // PER_UPDATE)
        norms = [[update.grad_norm for one in steps for update in one.updates] for steps in (synchronous, streamed)]
        assert norms[0] == norms[1]
        assert min(norms[0]) > 0
        await cast.save(tmp_path / "streamed")
    start, expected = contents(tmp_path / "start"), contents(tmp_path / "synchronous")
    assert contents(tmp_path / "streamed") == expected != start
