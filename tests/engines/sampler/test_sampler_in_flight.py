"""Weights that change while a real vLLM generates: every token is labelled with, and has the log-prob of, its own version."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import pytest_asyncio
from transformers import Qwen2ForCausalLM

from rlep.core.errors import WeightSyncError
from rlep.core.types import Completion, Int32Array, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import Probe, TensorSpec, WeightUpdate
from tests.engines.sampler.sampler_cases import (
    CONTEXT,
    SMALL_BLOCKS,
    VOCABULARY,
    build_model,
    checksums_of,
    config_of,
    perturb,
    true_logprobs,
)
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

CONFIG = config_of(max_sequences=32, max_batched_tokens=CONTEXT, engine=SMALL_BLOCKS)
SAMPLING = Sampling(max_tokens=60)
WRITERS, REQUESTS = 4, 300  # together 33 times what the engine holds: whenever the weights change, it is generating
CHECKED = 150


@dataclass
class Rig:
    """A started sampler beside the transformers model of every version it was given."""

    sampler: Sampler
    writer: SharedMemoryWriter
    on_update: str
    model: Qwen2ForCausalLM
    models: dict[int, Qwen2ForCausalLM] = field(default_factory=dict)
    version: int = 0

    def weight_update(self) -> WeightUpdate:
        """The model's present weights as those of the present version."""
        weights = list(self.model.named_parameters())
        layout = tuple(TensorSpec(name, "float32", tuple(weight.shape)) for name, weight in weights)
        shared = self.writer.write(layout, weights, self.version)
        prompt, response = tokens(9, 1), tokens(20, 2)
        probe = Probe(prompt, response, true_logprobs(self.model, prompt, response))
        self.models[self.version] = copy.deepcopy(self.model)
        return WeightUpdate(self.version, layout, shared, (probe,), 1e-4, checksums_of(self.model))

    async def update(self) -> None:
        """Other weights as the next version, loaded and confirmed."""
        perturb(self.model, 0.05)
        self.version += 1
        weight_update = self.weight_update()
        await self.sampler.load_weights(weight_update)
        assert await self.sampler.confirm(weight_update) <= 1e-4

    def worst(self, completion: Completion, prompt: Int32Array) -> float:
        """Largest difference to the log-probs of a plain forward pass of each token's own version."""
        versions = versions_of(completion)
        truth = {one: true_logprobs(self.models[one], prompt, completion.tokens) for one in set(versions)}
        return max(abs(float(truth[one][at] - completion.logprobs[at])) for at, one in enumerate(versions))


def tokens(count: int, seed: int) -> Int32Array:
    return np.random.default_rng(seed).integers(2, VOCABULARY, count).astype(np.int32)


def requests(label: str, count: int = REQUESTS) -> list[Request]:
    return [Request(f"{label}/{i}", f"p{i // 4}", tokens(4 + i // 4 % 30, i // 4), i % 4, i) for i in range(count)]


def versions_of(completion: Completion) -> list[int]:
    assert completion.token_versions is not None
    versions: list[int] = completion.token_versions.tolist()
    assert len(versions) == len(completion.tokens) == len(completion.logprobs)
    assert versions == sorted(versions)
    assert versions[0] == completion.policy_version
    return versions


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["keep", "abort"])
async def rig(
    request: pytest.FixtureRequest, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp(request.param)
    model = build_model(directory, tied=True)
    config = CONFIG.with_values(rollout={"max_staleness": 1, "partial": request.param})
    prepare_environment(config)
    sampler = Sampler(directory, config)
    await sampler.start(deadline_s=500)
    yield Rig(sampler, SharedMemoryWriter(directory), request.param, model)
    await sampler.close()


async def test_nothing_is_generated_before_any_weights_are_confirmed(rig: Rig) -> None:
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await anext(rig.sampler.generate(requests("early"), SAMPLING))


@dataclass
class Writing:
    """Writers of whom each asks for ``REQUESTS`` responses again and again until ``enough``: the engine is never idle."""

    rig: Rig
    label: str
    enough: bool = False
    newest: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each response that the newest weights ended."""
    prompts: dict[str, Int32Array] = field(default_factory=dict)
    found: dict[str, Completion] = field(default_factory=dict)

    async def writer(self, number: int) -> None:
        for turn in itertools.count():
            if self.enough:
                return
            wanted = requests(f"{self.label}/{number}/{turn}")
            self.prompts |= {request.id: request.tokens for request in wanted}
            async for batch in self.rig.sampler.generate(wanted, SAMPLING):
                assert not self.found.keys() & {one.request_id for one in batch}
                self.found |= {one.request_id: one for one in batch}
                if any(versions_of(one)[-1] == self.rig.version for one in batch):
                    self.newest.set()

    async def response_under_the_newest_weights(self) -> None:
        """Wait for one that is yet to come."""
        self.newest.clear()
        async with asyncio.timeout(DEADLINE_S):
            await self.newest.wait()

    def versions(self) -> set[int]:
        return {version for one in self.found.values() for version in versions_of(one)}

    def worst(self, chosen: Iterable[Completion]) -> float:
        """Of ``Rig.worst``."""
        return max(self.rig.worst(one, self.prompts[one.request_id]) for one in chosen)


def evenly(responses: list[Completion]) -> list[Completion]:
    """At most ``CHECKED`` of them: a slow machine generates more until the weights have changed."""
    return responses[:: len(responses) // CHECKED + 1]


@asynccontextmanager
async def writing(rig: Rig, label: str) -> AsyncIterator[Writing]:
    """Responses are generated while the block lasts; after it each that was asked for is there, once."""
    done = Writing(rig, label)
    async with asyncio.TaskGroup() as writers:
        for number in range(WRITERS):
            writers.create_task(done.writer(number))
        yield done
        done.enough = True
    assert done.found.keys() == done.prompts.keys()


async def test_responses_survive_updates_and_each_token_is_its_own_versions(rig: Rig) -> None:
    await rig.update()
    async with writing(rig, "spanning") as done:
        for _ in range(2):
            await done.response_under_the_newest_weights()
            await rig.update()
        await done.response_under_the_newest_weights()
    spanning = [one for one in done.found.values() if len(set(versions_of(one))) > 1]
    assert done.versions() == {1, 2, 3}
    if rig.on_update == "abort":
        assert spanning == []
    else:
        assert len(spanning) >= 2  # of 36 that were being generated at either update
    checked = {one.request_id: one for one in [*spanning, *evenly(list(done.found.values()))]}
    assert done.worst(checked.values()) <= 1e-4


async def test_what_was_generated_under_weights_that_were_refused_is_generated_again(rig: Rig) -> None:
    async with writing(rig, "refused") as done:
        await done.response_under_the_newest_weights()
        rig.version += 1
        good = copy.deepcopy(rig.model)
        perturb(good, 0.05)
        perturb(rig.model, 0.1)
        bad = rig.weight_update()
        wrong = replace(bad.probes[0], logprobs=true_logprobs(good, bad.probes[0].prompt, bad.probes[0].response))
        await rig.sampler.load_weights(bad)
        with pytest.raises(WeightSyncError, match="differ from the learner's"):
            await rig.sampler.confirm(replace(bad, probes=(wrong,)))
        assert rig.version not in done.versions()
        rig.model = good
        again = rig.weight_update()
        await rig.sampler.load_weights(again)
        await rig.sampler.confirm(again)
        await done.response_under_the_newest_weights()
    assert done.versions() == {rig.version - 1, rig.version}
    of_both = [one for one in done.found.values() if rig.version in versions_of(one)]
    assert done.worst(evenly(of_both)) <= 1e-4


async def test_an_abandoned_response_stays_away(rig: Rig) -> None:
    wanted = requests("left", WRITERS * REQUESTS)
    first, found = True, set()
    async for batch in rig.sampler.generate(wanted, SAMPLING):
        found |= {one.request_id for one in batch}
        if first:
            first = False
            rig.sampler.abandon({request.id for request in wanted if request.id not in found})
            await rig.update()
    assert len(found) < len(wanted)
    assert not rig.sampler._samples
