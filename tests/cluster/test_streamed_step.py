"""Plain and streamed steps on real parts: given the same responses, both end with the same weights to the bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.verifiers import VerifierPool
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Subject
from rlep.cli.progress import TerminalProgress
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import Completion, Float32Array, Reissued, Request, Sampling, SequenceBatch, UpdateOutcome
from rlep.data.prompts import PromptSet
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.wings.streamed import stream_step
from rlep.launch.roles import run_actors
from tests.small import BASE, FRESH, PER_UPDATE, PROMPTS, contents, small_task

STEPS = 2
MAKERS = {"plain": run_step, "streamed": stream_step}


@dataclass(eq=False)
class Answers:
    """Real generators that give ``known`` responses again.

    With ``held``, those after the first mini-batch come only once the first update was made.
    """

    inner: GeneratorPool
    updated: asyncio.Event = field(default_factory=asyncio.Event)
    held: bool = False
    known: dict[str, Completion] = field(default_factory=dict)

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self.inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        if requests[0].id in self.known:
            for number, request in enumerate(requests):
                if self.held and number == PER_UPDATE * FRESH:
                    await self.updated.wait()
                yield self.known[request.id]
            return
        async for one in self.inner.generate(requests, sampling, deadline_s=deadline_s):
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
    start: Path

    async def steps(self, maker: str) -> list[StepOutcome]:
        """Steps on the same prompts, from the weights saved at ``start``."""
        await self.learner.load(self.start)
        await self.weights.publish(0)
        self.learner.asked.clear()
        self.generators.held = maker == "streamed"
        run = Run(self.config, Roles(self.generators, self.verifiers), TerminalProgress(), "tok", "base", "float32")
        trainers = Trainers(self.learner, self.weights, OnPolicyRollouts(run), None)
        outcomes = []
        for number in range(STEPS):
            self.generators.updated.clear()
            step = Step(run, trainers, number, 0, lambda *_: ())
            outcomes.append(await MAKERS[maker](step, self.prompts.prompts[:PROMPTS]))
        return outcomes

    async def save(self, home: Path) -> None:
        """Weights and optimizer state into a new directory."""
        await asyncio.to_thread(home.mkdir)
        await self.learner.save(home)
        await self.learner.written()


async def test_both_steps_end_with_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=streamed", "cluster.cpus=4"]
    # Rewards that fall with every token: each group has a gradient, whatever the base model gets right.
    overrides += ["update.lr=1e-3", "reward.overlong_buffer=47", "update.stream=true"]
    config = load_config([BASE], [*overrides, "learner.ranks=2"])
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    updates = PROMPTS // PER_UPDATE
    in_order = {"plain": ["score"] * updates + ["update"] * updates, "streamed": ["score", "update"] * updates}
    norms, saved = {}, {}
    async with run_actors(config) as actors:
        generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        answers, start = Answers(generators), tmp_path / "start"
        cast = Cast(config, inputs.train, answers, verifiers, Watched(learners, answers.updated), weights, start)
        await cast.save(start)
        for maker in MAKERS:
            outcomes = await cast.steps(maker)
            assert cast.learner.asked == STEPS * in_order[maker]
            norms[maker] = [update.grad_norm for one in outcomes for update in one.updates]
            await cast.save(tmp_path / maker)
            saved[maker] = contents(tmp_path / maker)
    assert norms["streamed"] == norms["plain"]
    assert min(norms["plain"]) > 0
    assert saved["streamed"] == saved["plain"] != contents(start)
