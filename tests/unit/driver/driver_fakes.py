"""A small world behind the driver's ports: every answer, verdict and weight is a pure function of what went in."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlep.config.schema import Config
from rlep.core.draws import draw_uniform
from rlep.core.errors import LearnerLost, UpdateError
from rlep.core.progress import Advance
from rlep.core.seeds import generator_for
from rlep.core.types import (
    AddReport,
    Completion,
    FinishReason,
    Float32Array,
    Prompt,
    Reissued,
    Request,
    Sampling,
    SequenceBatch,
    Status,
    Trajectory,
    UpdateOutcome,
    Verdict,
)
from rlep.data.prompts import PromptSet
from rlep.driver.checkpoint import Checkpoint
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.replays import choose_method
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.train import MakeStep, Training, TrainingData
from rlep.launch.wings import choose_step, rollouts
from tests.unit.driver.driver_values import BASE, TOKENIZER, answer_of, batch_bytes, config_of, logprobs_of, sums_of


class Killed(Exception):
    """Stands for a process that is gone."""


@dataclass(eq=False)
class World:
    """What the fakes have in common: the order of events, and the moment at which the process dies."""

    happened: list[str] = field(default_factory=list)
    kill_at: int | None = None
    """Number of the event that does not happen any more."""
    lose_learner_at: tuple[str, ...] = ()
    """Events at which the learner is lost, each once, e.g. ``update/3``: the fourth update."""

    async def event(self, name: str, detail: object = "") -> None:
        """Something happens; others may run meanwhile."""
        if self.kill_at is not None and len(self.happened) >= self.kill_at:
            raise Killed(name)
        number = sum(entry.split()[0] == name for entry in self.happened)
        self.happened.append(f"{name} {detail}".strip())
        if f"{name}/{number}" in self.lose_learner_at:
            raise LearnerLost(f"{name}: rank 1 died")
        await asyncio.sleep(0)

    def count(self, name: str) -> int:
        """How often ``name`` happened."""
        return Counter(entry.split()[0] for entry in self.happened)[name]

    def first(self, entry: str) -> int:
        """When ``entry`` happened first."""
        return self.happened.index(entry)


@dataclass(eq=False)
class FakeGenerators:
    """A scripted policy: tokens follow from the request's seed and the weights; about 4 in 10 answers are right."""

    world: World
    order: int | None = None
    """Seed of the order in which completions arrive; None keeps the order of the requests."""
    redeliver: int = 0
    """So many first completions are lost with their worker and come again at the end."""
    stale: int = 0
    """Versions that the last answer lags behind."""
    always: str = ""
    """Each answer, instead of the scripted ``right`` or ``wrong``."""
    version: int = 0
    weights: bytes = BASE
    asked: list[Request] = field(default_factory=list)
    reissued: Reissued = Reissued()  # noqa: RUF009 - frozen

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        await self.world.event("generate", len(requests))
        self.asked.extend(requests)
        turn = np.arange(len(requests))
        if self.order is not None:
            turn = np.random.default_rng(self.order).permutation(len(requests))
        queue = [requests[int(index)] for index in turn]
        queue = queue[self.redeliver :] + queue[: self.redeliver]
        for request in queue:
            for _ in range(request.seed % 3):
                await asyncio.sleep(0)
            await self.world.event("completion", request.id)
            yield self.answer(request, sampling, self.version - (self.stale if request is queue[-1] else 0))

    def answer(self, request: Request, sampling: Sampling, version: int) -> Completion:
        """What the policy says to a request."""
        draw = generator_for(request.seed, "policy", self.weights.hex())
        length = min(int(draw.integers(1, sampling.max_tokens + 4)), sampling.max_tokens)
        tokens = draw.integers(0, 100, size=length).astype(np.int32)
        right = draw.random() < 0.4
        text = self.always or ("right" if right else "wrong")
        reason: FinishReason = "length" if length == sampling.max_tokens else "stop"
        logprobs = np.full(length, -0.5, dtype=np.float32)
        return Completion(request.id, request.prompt_id, request.sample, tokens, logprobs, reason, version, text)


@dataclass(eq=False)
class FakeVerifiers:
    """``right`` is correct; any other text is the status it names, or wrong."""

    world: World
    fail: Exception | None = None
    verdicts: Mapping[str, Sequence[Status]] = field(default_factory=dict)
    """Prompt id → status of its samples, where they are scripted."""
    scores: Mapping[str, Sequence[tuple[float | None, Mapping[str, float]]]] = field(default_factory=dict)
    """Prompt id → score of its samples and their parts, where they have any."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        await self.world.event("grade", prompt.question)
        if self.fail is not None:
            raise self.fail
        scripted = self.verdicts.get(prompt.id)
        statuses: list[Status] = ["correct" if c.text == "right" else "wrong" for c in completions]
        scores = self.scores.get(prompt.id, [(None, {})] * len(statuses))
        return [
            Verdict(status, "2" if status == "correct" else None, "math", "1", "full", 0.5, score, parts)
            for status, (score, parts) in zip(scripted or statuses, scores, strict=True)
        ]


@dataclass(eq=False)
class FakePool:
    """Stored answers by prompt, drawn by the contract of ``draw_uniform``."""

    world: World
    stored: dict[str, list[Trajectory]] = field(default_factory=dict)
    refuse: str = ""
    """Reason for which it does not take the first response of a batch."""
    fail: Exception | None = None
    handed_out: list[Trajectory] = field(default_factory=list)

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        await self.world.event("sample", step)
        if self.fail is not None:
            raise self.fail
        sizes = [len(self.stored.get(prompt_id, ())) for prompt_id in prompt_ids]
        indices, offsets = draw_uniform(prompt_ids, sizes, count, seed=seed, step=step)
        drawn = {
            prompt_id: [self.stored[prompt_id][int(i)] for i in indices[offsets[at] : offsets[at + 1]]]
            for at, prompt_id in enumerate(prompt_ids)
        }
        self.handed_out.extend(member for members in drawn.values() for member in members)
        return drawn

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        await self.world.event("add", len(trajectories))
        refused: tuple[tuple[str, str], ...] = ()
        if self.fail is not None:
            raise self.fail
        if self.refuse:
            refused, trajectories = ((trajectories[0].content_id, self.refuse),), trajectories[1:]
        inserted = 0
        for member in trajectories:
            known = self.stored.setdefault(member.prompt_id, [])
            if member.content_id not in {other.content_id for other in known}:
                known.append(member)
                inserted += 1
        return AddReport(inserted, len(trajectories) - inserted, refused)

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> NoReturn:
        raise AssertionError("only live replay fetches by name")

    async def contents(self, prompt_ids: Sequence[str] | None = None) -> Mapping[str, Sequence[str]]:
        asked = self.stored if prompt_ids is None else prompt_ids
        return {name: sorted(member.content_id for member in self.stored.get(name, ())) for name in asked}

    async def remove(self, prompt_id: str, content_ids: Sequence[str]) -> NoReturn:
        raise AssertionError("only live replay removes")

    async def digest(self) -> str:
        ids = sorted(member.content_id for members in self.stored.values() for member in members)
        return hashlib.blake2b("".join(ids).encode(), digest_size=8).hexdigest()


def filled_pool(world: World, prompts: Sequence[Prompt], answers: int = 4) -> FakePool:
    """``answers`` stored answers to every prompt."""
    return FakePool(world, {prompt.id: [answer_of(prompt, n) for n in range(answers)] for prompt in prompts})


@dataclass(eq=False)
class FakeLearner:
    """Weights are a hash chain over the batches trained on; log-probs a function of tokens and weights."""

    world: World
    state: bytes = BASE
    updates: int = 0
    batches: list[SequenceBatch] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)  # tokens of each batch
    rollouts: list[int] = field(default_factory=list)
    restarts: int = 0
    updated: int | None = None
    """The rollout of the last update."""
    keep_start_weights: bool = False
    kept: bytes | None = None  # the state before that rollout's first update

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        await self.world.event("score", len(batch))
        self.scored.append(len(batch.tokens))
        if rollout is None or rollout != self.updated:
            return logprobs_of(batch, self.state)
        if self.kept is None:
            raise UpdateError(f"the weights before rollout {rollout} were not kept")
        return logprobs_of(batch, self.kept)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        await self.world.event("update", len(batch))
        if rollout != self.updated:
            self.updated, self.kept = rollout, self.state if self.keep_start_weights else None
        self.batches.append(batch)
        self.rollouts.append(rollout)
        if not batch.sampled_lengths[batch.trained].sum():
            return UpdateOutcome(0.0, 0.0, 0.5, "no tokens", {})
        self.state = hashlib.blake2b(self.state + batch_bytes(batch), digest_size=16).digest()
        self.updates += 1
        return UpdateOutcome(float(self.state[1]), float(self.state[2]), 0.5, "", {} if supervised else sums_of(batch))

    async def save(self, directory: Path) -> None:
        await self.world.event("save")
        self.aside = (directory, self.state, self.updates)

    async def written(self) -> None:
        directory, state, updates = self.aside
        for name, content in (("model/state", state), ("trainer/updates", str(updates).encode())):
            (directory / name).parent.mkdir()
            (directory / name).write_bytes(content)
            await self.world.event("saved")

    async def load(self, directory: Path) -> None:
        await self.world.event("load", directory.name)
        self.state = (directory / "model" / "state").read_bytes()
        self.updates = int((directory / "trainer" / "updates").read_text())
        self.updated = self.kept = None

    async def restart(self) -> None:
        if not self.restarts:
            raise LearnerLost("the learner is out of restarts")
        self.restarts -= 1
        self.state, self.updates = BASE, 0
        self.updated = self.kept = None


@dataclass(eq=False)
class FakeWeights:
    """Hands the learner's state to the generators."""

    world: World
    learner: FakeLearner
    generators: FakeGenerators
    versions: list[int] = field(default_factory=list)

    async def publish(self, version: int) -> float:
        await self.world.event("publish", version)
        self.versions.append(version)
        self.generators.version, self.generators.weights = version, self.learner.state
        return 0.125


@dataclass(eq=False)
class FakeProgress:
    """Counts what the bars were told."""

    done: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        def advance(by: int) -> None:
            self.done[name] += by

        yield advance

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(eq=False)
class Scene:
    """All fakes of one run."""

    config: Config
    world: World
    generators: FakeGenerators
    verifiers: FakeVerifiers
    learner: FakeLearner
    weights: FakeWeights
    progress: FakeProgress
    pool: FakePool | None
    failures: FakePool | None = None

    @property
    def run(self) -> Run:
        """What the driver is given."""
        roles = Roles(self.generators, self.verifiers)
        return Run(self.config, roles, self.progress, TOKENIZER, "small:base", "float32")

    @property
    def trainers(self) -> Trainers:
        """Who trains, on policy."""
        method, ways = choose_method(self.config), OnPolicyRollouts(self.run)
        return Trainers(self.learner, self.weights, ways, self.pool, self.failures, method)

    def training(
        self,
        train: PromptSet,
        held_out: Sequence[Prompt],
        store: RunDirectory,
        make: MakeStep | None = None,
        pool_digest: str = "pool",
        **hooks: Any,
    ) -> Training:
        """A run with the wings that the config asks for; ``make`` instead of the config's step."""
        trained = replace(self.trainers, rollouts=rollouts(self.run, train))
        data = data_of(train, held_out, pool_digest)
        make = make or choose_step(self.config)
        return Training(self.run, trained, data, store, make, **hooks)

    async def train(
        self,
        directory: Path,
        train: PromptSet,
        held_out: Sequence[Prompt] = (),
        make: MakeStep | None = None,
        **more: Any,
    ) -> Checkpoint:
        """Train in ``directory`` as a process of its own would."""
        store = RunDirectory(directory, self.config, Facts("train", "model", TOKENIZER, train.digest))
        try:
            return await self.training(train, held_out, store, make, **more).run()
        finally:
            store.close()

    def step(self, number: int = 0, *, replays: int | None = None, spare: Sequence[Prompt] = ()) -> Step:
        """A step whose dynamic sampling finds ``spare`` prompts."""

        def more(round_number: int, count: int, used: Sequence[Prompt]) -> Sequence[Prompt]:
            taken = {prompt.id for prompt in used}
            return [prompt for prompt in spare if prompt.id not in taken][:count]

        self.generators.version = number
        replays = self.config.replay.count if replays is None else replays
        return Step(self.run, self.trainers, number, replays, more)


def scene_of(config: Config | None = None, *, pool: FakePool | None = None, order: int | None = None) -> Scene:
    """Fakes around one world; the pool's world is shared."""
    world, config = pool.world if pool else World(), config or config_of()
    generators, learner = FakeGenerators(world, order), FakeLearner(world, keep_start_weights=config.update.stream)
    weights = FakeWeights(world, learner, generators)
    return Scene(config, world, generators, FakeVerifiers(world), learner, weights, FakeProgress(), pool)


def data_of(train: PromptSet, evaluation: Sequence[Prompt], pool_digest: str = "pool") -> TrainingData:
    """What a run trains on; responses are decoded to their token ids."""
    return TrainingData(train, tuple(evaluation), pool_digest, lambda tokens: " ".join(map(str, tokens.tolist())))
