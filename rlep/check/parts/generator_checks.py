"""Checks of a generator: seeds, log-probs, and a KV cache that is too small."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

import numpy as np
from pydantic import JsonValue

from rlep.check.parts.learner_checks import make_rank
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig
from rlep.config.schema import Config
from rlep.core.plural import counted
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.weight_sender import probe_batch
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.weight_update import LOGPROB_TOLERANCE

REQUESTS, MAX_TOKENS = 24, 12
CRAMPED_CONTEXT, CRAMPED_PROMPT = 64, 28
"""Tokens. A prompt fits into one block of ``BLOCK`` tokens (two of a GPU's 16), and with its response it needs one more."""
BLOCK, FEW_BLOCKS = 32, 9
"""A KV cache that is full of prompts; one block of it stays empty."""


def generator(rig: Rig, sampler: type[Sampler] = Sampler) -> str:
    """Same seeds, same tokens; the log-probs that were sampled are those that the same tokens are scored with."""
    return asyncio.run(_generator(rig, sampler))


async def _generator(rig: Rig, kind: type[Sampler]) -> str:
    async with started(rig, kind) as sampler:
        sampler.serve_base(0)
        requests, sampling = requests_of(rig), Sampling(1.0, 1.0, 0, min(MAX_TOKENS, rig.config.rollout.max_tokens))
        begun = time.perf_counter()
        first, second = [await sampled(sampler, requests, sampling) for _ in range(2)]
        seconds = time.perf_counter() - begun
        changed = [a.request_id for a, b in zip(first, second, strict=True) if not np.array_equal(a.tokens, b.tokens)]
        if changed and not rig.config.generator.gpus:  # a GPU rounds otherwise in another batch
            raise CheckFailed(f"{len(changed)} of {len(first)} responses changed when sampled again with the same seed")
        rescored = await sampler.score([(r.tokens, c.tokens) for r, c in zip(requests, first, strict=True)])
        difference = np.abs(np.concatenate(rescored) - np.concatenate([c.logprobs for c in first]))
        allowed = LOGPROB_TOLERANCE[rig.config.generator.compute_dtype]
        if not float(difference.mean()) <= allowed:
            raise CheckFailed(
                f"sampled log-probs differ from those of scoring by {difference.mean():.2g} nats on average, allowed {allowed:g}"
            )
        tokens = sum(len(c.tokens) for c in (*first, *second))
        same = f"{len(first) - len(changed)} of {len(first)} responses the same with the same seed"
        return f"{same}, log-probs within {difference.mean():.1g} nats, {tokens / seconds:,.0f} tokens/s of two layers"


def preemption(rig: Rig, sampler: type[Sampler] = Sampler, blocks: int = FEW_BLOCKS) -> str:
    """With too small a KV cache every request is answered once, with log-probs that the learner agrees with."""
    return asyncio.run(_preemption(rig, sampler, blocks))


async def _preemption(rig: Rig, kind: type[Sampler], blocks: int) -> str:
    cramped = with_engine(
        rig.sampler(),
        max_model_len=CRAMPED_CONTEXT,
        block_size=BLOCK,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=CRAMPED_CONTEXT > BLOCK,
    )
    async with started(rig, kind, cramped) as sampler:
        sampler.serve_base(0)
        asked = requests_of(rig, CRAMPED_PROMPT)
        answers = [c async for some in sampler.generate(asked, Sampling(1.0, 1.0, 0, MAX_TOKENS)) for c in some]
        count = (await sampler.health()).preempted
    if not count:
        raise CheckFailed(f"vLLM preempted no request with a KV cache of {blocks} blocks, so nothing was seen")
    times = Counter(answer.request_id for answer in answers)
    if wrong := [request.id for request in asked if times[request.id] != 1]:
        raise CheckFailed(
            f"{len(wrong)} of {len(asked)} requests were not answered once after {counted(count, 'preemption')}, "
            f"{wrong[0]} {counted(times[wrong[0]], 'time')}"
        )
    with closing(make_rank(rig, LearnerRank, "preemption")) as made:
        difference = difference_to(made, asked, answers)
    allowed = LOGPROB_TOLERANCE[rig.config.generator.compute_dtype]
    if not difference <= allowed:
        raise CheckFailed(
            f"after {counted(count, 'preemption')} log-probs differ from the learner's by {difference:.2g} nats on "
            f"average, allowed {allowed:g}"
        )
    return (
        f"{counted(count, 'preemption')}, {len(answers)} of {len(asked)} requests answered once, log-probs within "
        f"{difference:.1g} nats of the learner's"
    )


def difference_to(made: LearnerRank, requests: Sequence[Request], answers: Sequence[Completion]) -> float:
    """Mean difference of sampled log-probs from those of the learner, in nats."""
    prompts = {request.id: request.tokens for request in requests}
    exact = made.score(probe_batch([(prompts[answer.request_id], answer.tokens) for answer in answers]))
    return float(np.abs(exact - np.concatenate([answer.logprobs for answer in answers])).mean())


def with_engine(config: Config, **arguments: JsonValue) -> Config:
    """The configuration with other arguments of vLLM, those that a file may not set too."""
    return config.with_values(generator={"engine": config.generator.engine | arguments})


@asynccontextmanager
async def started(rig: Rig, kind: type[Sampler], config: Config | None = None) -> AsyncIterator[Sampler]:
    """A generator in this process; none of its weights are served yet."""
    config = config or rig.sampler()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_environment(config)
    sampler = kind(rig.model, config)
    try:
        await sampler.start(rig.config.generator.start_deadline_s)
        yield sampler
    finally:
        await sampler.close()


def requests_of(rig: Rig, length: int = 4) -> list[Request]:
    """Random prompts of ``length`` tokens, each with a seed of its own."""
    batch = rig.batch([length] * REQUESTS, seed=1)
    prompts = np.split(batch.tokens, batch.offsets[1:-1])
    return [Request(f"r{i}", f"p{i}", prompt, 0, seed=i) for i, prompt in enumerate(prompts)]


async def sampled(sampler: Sampler, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
    """One response for each request, in their order."""
    found = {c.request_id: c async for some in sampler.generate(requests, sampling) for c in some}
    return [found[request.id] for request in requests]
