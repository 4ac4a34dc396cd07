"""A real vLLM of two tensor-parallel workers on CPU: the same answers as one, weights taken by each for its own shard.

It also sleeps and wakes, as a generator that shares its devices does; what sleep frees is seen on a GPU only.

python -m pytest tests/engines/sampler/test_sampler_parallel.py -k cuda
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from rlep.config.schema import Config
from rlep.core.errors import ActorLost, WeightSyncError
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import (
    SharedMemoryWeights,
    WeightUpdate,
)
from tests.engines.sampler.sampler_cases import (
    CONTEXT,
    Published,
    build_model,
    config_of,
    perturb,
    sequence,
    true_logprobs,
)
from tests.small import workers_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
CPU = config_of(kv_cache_gib=0.125, max_sequences=8, max_batched_tokens=CONTEXT, tensor_parallel=2, threads=2)
ON_GPU: dict[str, Any] = {"gpus": 1.0, "memory_utilization": 0.3, "max_sequences": 8, "max_batched_tokens": CONTEXT}
CUDA = config_of(colocated=True, **ON_GPU)
ONE_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="whether sleep frees memory is seen on a GPU only")
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@dataclass
class Rig(Published):
    """A started sampler, and a learner's file that weights are written to."""

    writer: SharedMemoryWriter

    def publish(self, version: int) -> WeightUpdate:
        """The present weights, whole."""
        return self.offer(self.writer.write(self.layout, self.model.named_parameters(), version), version)

    async def answer(self, seed: int, sampling: Sampling = GREEDY) -> Completion:
        """An answer of that seed to a prompt of that seed."""
        prompt, _ = sequence(7, 1, seed)
        requests = [Request(f"r/{seed}", "p", prompt, 0, seed)]
        async for (completion,) in self.sampler.generate(requests, sampling):
            return completion
        raise AssertionError("no answer")

    def check(self, completion: Completion, seed: int) -> None:
        """The greedy answer is the model's own: no other token is likelier by more than the two may differ in."""
        prompt, _ = sequence(7, 1, seed)
        ids = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            rows = self.model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)  # [T, V]
        own = true_logprobs(self.model, prompt, completion.tokens)
        assert np.abs(completion.logprobs - own).max() <= self.tolerance
        assert (rows.max(-1).values.numpy() - own).max() <= 2 * self.tolerance


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param(CPU, id="cpu"),
        pytest.param(CUDA, id="cuda", marks=ONE_GPU),
        pytest.param(CUDA.with_values(generator={"eager": False}), id="cuda-graphs", marks=ONE_GPU),
    ],
)
async def rig(
    request: pytest.FixtureRequest, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    config: Config = request.param
    directory = tmp_path_factory.mktemp("model")
    model = build_model(directory, tied=True)
    prepare_environment(config)
    sampler = Sampler(directory, config)
    await sampler.start(deadline_s=800)
    writer = SharedMemoryWriter(tmp_path_factory.mktemp("weights"))
    yield Rig(config, sampler, model, writer)
    writer.close()
    await sampler.close()


async def test_weights_are_taken_and_greedy_answers_are_the_models_own(rig: Rig) -> None:
    for version in (1, 2):
        perturb(rig.model, 0.05)
        weight_update = rig.publish(version)
        await rig.sampler.load_weights(weight_update)
        assert await rig.sampler.confirm(weight_update) <= rig.tolerance
        completion = await rig.answer(version)
        assert completion.policy_version == version
        rig.check(completion, version)


async def test_sampled_tokens_have_their_raw_logprobs_and_are_among_the_likeliest(rig: Rig) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.95, top_k=4, max_tokens=24)
    completions = [await rig.answer(seed, sampling) for seed in (11, 11, 12)]
    assert completions[0].tokens.tolist() == completions[1].tokens.tolist()
    gaps = []
    for seed, completion in zip((11, 11, 12), completions, strict=True):
        prompt, _ = sequence(7, 1, seed)
        gaps.append(np.abs(completion.logprobs - true_logprobs(rig.model, prompt, completion.tokens)))
        ids = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            rows = rig.model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)  # [T, V]
        fourth = rows.sort(-1, descending=True).values[:, 3].numpy()
        assert (completion.logprobs - fourth >= -10 * rig.tolerance).all()
    assert np.concatenate(gaps).mean() <= rig.tolerance
    assert np.concatenate(gaps).max() <= 10 * rig.tolerance


async def test_asleep_it_serves_nothing_and_wakes_with_new_weights(rig: Rig) -> None:
    held = torch.cuda.mem_get_info()[0] if rig.config.cluster.placement == "colocated" else 0
    await rig.sampler.sleep()
    await rig.sampler.sleep()
    if rig.config.cluster.placement == "colocated":  # weights and KV cache: nearly all of its 0.3
        assert torch.cuda.mem_get_info()[0] - held > 0.2 * torch.cuda.mem_get_info()[1]
    with pytest.raises(WeightSyncError, match="serves no policy version"):
        await rig.answer(3)
    perturb(rig.model, 0.05)
    weight_update = rig.publish(3)
    assert isinstance(weight_update.source, SharedMemoryWeights)
    torn = replace(weight_update, source=replace(weight_update.source, stamp="0" * 32))
    with pytest.raises(WeightSyncError):
        await rig.sampler.load_weights(torn)
    await rig.sampler.load_weights(weight_update)
    assert await rig.sampler.confirm(weight_update) <= rig.tolerance
    rig.check(await rig.answer(3), 3)


async def test_a_load_that_broke_off_while_it_woke_leaves_a_sampler_that_sleeps_and_wakes_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("gone")

    await rig.sampler.sleep()
    weight_update = rig.publish(4)
    with monkeypatch.context() as patch:
        patch.setattr(rig.sampler._weights, "load", broken)
        with pytest.raises(WeightSyncError, match="must be repeated: gone"):
            await rig.sampler.load_weights(weight_update)
    await rig.sampler.sleep()
    await rig.sampler.load_weights(weight_update)
    assert await rig.sampler.confirm(weight_update) <= rig.tolerance
    assert (await rig.answer(4)).policy_version == 4


async def test_a_dead_worker_is_a_dead_sampler(rig: Rig) -> None:
    if rig.config.generator.tensor_parallel == 1:
        pytest.skip("one worker is the engine itself: tests/engines/sampler/test_sampler.py")
    workers = workers_of(psutil.Process())
    assert len(workers) == 2
    workers[1].kill()

    async def dead() -> bool:
        with suppress(ActorLost):
            await rig.sampler.health()
            return False
        return True

    await until(dead, "the engine to notice")
    with pytest.raises(ActorLost):
        await rig.answer(5)
    psutil.wait_procs(workers, timeout=60)
    assert not [process for process in workers if process.is_running()], "the other worker ends too"
