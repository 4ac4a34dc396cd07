"""Checks of a generator: seeds, log-probs, and weights from a learner by the configured transport."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

import numpy as np
import torch

from rlep.core.errors import WeightSyncError
from rlep.core.types import Completion, Int32Array, Request, Sampling
from rlep.engines.cpu import acceleration
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.weight_sender import LOGPROB_TOLERANCE, WeightSender
from rlep.engines.sampler.engine import Sampler, prepare_environment
from rlep.engines.sampler.setup import STOCK
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import WeightUpdate
from rlep.selftest.learner_checks import make_rank
from rlep.selftest.outcome import CheckFailed, CheckSkipped
from rlep.selftest.synthetic import Rig, halves, scored

REQUESTS, MAX_TOKENS = 24, 12
LENGTHS = (30, 21, 15, 9)
"""Of the sequences that are compared, in tokens; cut where the context is shorter."""


def generator(rig: Rig, sampler: type[Sampler] = Sampler) -> str:
    """Same seeds, same tokens; the log-probs that were sampled are those that the same tokens are scored with."""
    return asyncio.run(_generator(rig, sampler))


async def _generator(rig: Rig, kind: type[Sampler]) -> str:
    async with _started(rig, kind) as sampler:
        sampler.serve_base(0)
        requests, sampling = _requests(rig), Sampling(1.0, 1.0, 0, min(MAX_TOKENS, rig.config.rollout.max_tokens))
        begun = time.perf_counter()
        first, second = [await _sampled(sampler, requests, sampling) for _ in range(2)]
        seconds = time.perf_counter() - begun
        changed = [a.request_id for a, b in zip(first, second, strict=True) if not np.array_equal(a.tokens, b.tokens)]
        if changed and rig.sampler().device == "cpu":  # a GPU rounds otherwise in another batch
            raise CheckFailed(f"{len(changed)} of {len(first)} responses changed when sampled again with the same seed")
        rescored = await sampler.score([(r.tokens, c.tokens) for r, c in zip(requests, first, strict=True)])
        difference = np.abs(np.concatenate(rescored) - np.concatenate([c.logprobs for c in first]))
        allowed = LOGPROB_TOLERANCE[rig.sampler().dtype]
        if not float(difference.mean()) <= allowed:
            raise CheckFailed(
                f"sampled log-probs differ from those of scoring by {difference.mean():.2g} nats on average, allowed {allowed:g}"
            )
        tokens = sum(len(c.tokens) for c in (*first, *second))
        same = f"{len(first) - len(changed)} of {len(first)} responses the same with the same seed"
        return f"{same}, log-probs within {difference.mean():.1g} nats, {tokens / seconds:,.0f} tokens/s of two layers"


def weights(rig: Rig, learner: type[LearnerRank] = LearnerRank, sampler: type[Sampler] = Sampler) -> str:
    """A learner's updated weights arrive in the generator, which then has the learner's log-probs."""
    if rig.sampler().transfer == "nccl" and torch.cuda.device_count() < 2:
        raise CheckSkipped("NCCL needs two GPUs, one for each side")
    return asyncio.run(_weights(rig, learner, sampler))


async def _weights(rig: Rig, learner: type[LearnerRank], kind: type[Sampler]) -> str:
    transfer = rig.sampler().transfer
    async with _started(rig, kind) as sampler:
        if transfer == "nccl":
            os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        batch = rig.batch([min(length, rig.context - 1) for length in LENGTHS])
        with closing(make_rank(rig, learner, "weights")) as made:
            made.update(scored(batch, made.score(batch)), rollout=0)
            update, seconds, difference = await _sent(rig, made, sampler, halves(batch))
        size = sum(spec.nbytes for spec in update.layout)
        return (
            f"{transfer}: {size / 2**20:.1f} MiB in {seconds:.2f} s ({size / 2**30 / seconds:.2f} GiB/s), "
            f"log-probs within {difference:.1g} nats of the learner's"
        )


async def _sent(
    rig: Rig, made: LearnerRank, sampler: Sampler, probes: Sequence[tuple[Int32Array, Int32Array]]
) -> tuple[WeightUpdate, float, float]:
    """The update, the seconds it took, and the largest log-prob difference (nats)."""
    dtype, transfer = rig.sampler().dtype, rig.sampler().transfer
    if transfer == "shared_memory":
        update, sending = made.publish(SharedMemoryWriter(rig.shared), 1, probes, dtype), None
    else:
        sender = WeightSender("127.0.0.1", transfer, 2, rig.config.generator.transfer_deadline_s)
        update = made.publish(sender.group, 1, probes, dtype)
        sending = asyncio.create_task(asyncio.to_thread(made.send, sender, dtype))
    assert update is not None
    begun = time.perf_counter()
    try:
        await sampler.load_weights(update)
        if sending is not None:
            await sending
        seconds = time.perf_counter() - begun
        return update, seconds, await sampler.confirm(update)
    except WeightSyncError as error:
        raise CheckFailed(str(error)) from None


@asynccontextmanager
async def _started(rig: Rig, kind: type[Sampler]) -> AsyncIterator[Sampler]:
    options = rig.sampler()
    parts = acceleration().engine if options.cpu_acceleration else STOCK
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_environment(options, None, parts)
    sampler = kind(rig.model, options, parts)
    try:
        await sampler.start(rig.config.generator.start_deadline_s)
        yield sampler
    finally:
        await sampler.close()


def _requests(rig: Rig) -> list[Request]:
    batch = rig.batch([4] * REQUESTS, seed=1)
    prompts = np.split(batch.tokens, batch.offsets[1:-1])
    return [Request(f"r{i}", f"p{i}", prompt, 0, seed=i) for i, prompt in enumerate(prompts)]


async def _sampled(sampler: Sampler, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
    found = {c.request_id: c async for some in sampler.generate(requests, sampling) for c in some}
    return [found[request.id] for request in requests]
