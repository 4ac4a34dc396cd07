"""Actors that take the time of devices and send arrays of real size: a generator without an engine, a learner without a model."""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rlep.actors.gathering import gather_items
from rlep.core.progress import Advance
from rlep.core.seeds import generator_for
from rlep.core.types import Completion, Prompt, Request, Sampling, SequenceBatch, UpdateCost, UpdateOutcome, Verdict
from rlep.engines.sampler.engine import SamplerHealth
from rlep.engines.weights.weight_update import SharedMemoryWeights, WeightUpdate


@dataclass(frozen=True)
class Lengths:
    """Tokens of responses: log-normal, and no more than ``limit``."""

    median: float
    sigma: float
    limit: int

    def of(self, seed: int) -> int:
        """The length of the response to the request with this seed."""
        drawn = self.median * np.exp(self.sigma * generator_for(seed, "length").standard_normal())
        return int(np.clip(drawn, 1, self.limit))


@dataclass(frozen=True)
class Devices:
    """How long simulated work takes, in seconds."""

    lengths: Lengths
    token: float
    """Of one response's token in a generator."""
    trained_token: float
    """Of a token that the learner scores and updates on, on one device."""
    exchange: float
    """A publication; a side's sleep or wake-up."""
    ranks: int
    slots: int
    """Responses that a generator decodes at once."""


def simulated_generator(devices: Devices) -> Any:
    """``GeneratorActor`` without an engine."""

    @ray.remote
    class Generator:
        def __init__(self, *_: object) -> None:
            self._version = 0
            self._slots = [0.0] * devices.slots

        async def ping(self) -> int:
            return os.getpid()

        async def start(self, number: int, deadline_s: float) -> None:
            pass

        async def load(self, number: int, weight_update: WeightUpdate) -> float:
            await asyncio.sleep(devices.exchange / 2)
            self._version = weight_update.version
            return 0.0

        async def sleep(self, number: int) -> None:
            await asyncio.sleep(devices.exchange)

        async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[list[Completion]]:
            async for ended in gather_items(responses(devices, requests, self._version, self._slots)):
                yield ended

        async def abandon(self, request_ids: Sequence[str]) -> None:
            pass

        async def health(self) -> SamplerHealth:
            return SamplerHealth()

        async def close(self) -> None:
            pass

    return Generator


async def responses(
    devices: Devices, requests: Sequence[Request], version: int, slots: list[float]
) -> AsyncGenerator[list[Completion]]:
    """Each when its tokens' time in the first free slot is over; ``slots``: a heap of when each is free."""
    ends = []
    for number, request in enumerate(requests):
        length = devices.lengths.of(request.seed)
        end = max(time.monotonic(), slots[0]) + length * devices.token
        heapq.heapreplace(slots, end)
        ends.append((end, length, number))
    heapq.heapify(ends)
    while ends:
        await asyncio.sleep(max(0.0, ends[0][0] - time.monotonic()))
        ended = []
        while ends and ends[0][0] <= time.monotonic():
            _, length, number = heapq.heappop(ends)
            ended.append(response(requests[number], length, version))
        yield ended


def response(request: Request, length: int, version: int) -> Completion:
    """Arrays and text of real size."""
    tokens, logprobs = np.arange(length, dtype=np.int32), np.full(length, -0.5, dtype=np.float32)
    text = "text" * length
    return Completion(
        request.id, request.prompt_id, request.sample, tokens, logprobs, "stop", version, text, token_versions=None
    )


def simulated_learner(devices: Devices) -> Any:
    """``LearnerActor`` without a model."""

    @ray.remote
    class Learner:
        def __init__(self, rank: int) -> None:
            self._rank = rank
            self._thread = ThreadPoolExecutor(1)

        async def ping(self) -> int:
            return os.getpid()

        async def node(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

        async def run(self, number: int, method: str, *args: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._thread, getattr(self, f"do_{method}"), *args)

        async def close(self) -> None:
            pass

        def do_meeting_point(self) -> str:
            return "tcp://127.0.0.1:0"

        def do_start(self, *_: object) -> None:
            pass

        def do_score(self, batch: SequenceBatch, _: object) -> Any:
            time.sleep(0.25 * len(batch.tokens) * devices.trained_token / devices.ranks)
            return None if self._rank else np.full(int(batch.sampled_lengths.sum()), -0.5, dtype=np.float32)

        def do_update(self, batch: SequenceBatch, *_: object) -> UpdateOutcome | None:
            time.sleep(0.75 * len(batch.tokens) * devices.trained_token / devices.ranks)
            return None if self._rank else UpdateOutcome(0.0, 0.0, 0.0, "", {}, UpdateCost(len(batch.tokens), 1.0))

        def do_publish(self, version: int, *_: object) -> WeightUpdate | None:
            time.sleep(devices.exchange / 2)
            source = SharedMemoryWeights(Path("nowhere"), 0, "")
            return None if self._rank else WeightUpdate(version, (), source, (), 0.0, ())

        def do_sleep(self) -> None:
            time.sleep(devices.exchange)

        do_wake = do_sleep

    return Learner


class Verifiers:
    """Every other response is right, at once."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """See the port."""
        verdicts = Verdict("wrong", "3", "math", "1"), Verdict("correct", "2", "math", "1")
        return [verdicts[one.sample % 2] for one in completions]


class Silent:
    """No bars."""

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """See the port."""

        def advance(by: int = 1) -> None:
            """Nothing moves."""

        yield advance

    def note(self, text: str) -> None:
        """Nobody reads it."""
