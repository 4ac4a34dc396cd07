"""The driver's own CPU time in a step with 64 simulated generators: 512 prompts × 16 responses, then twice the prompts.

Behind the driver's ports stand the real request queue with 64 workers that answer at once, a learner and a verifier that
take no time, and a pool in memory. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlep.actors.work_queue import WorkQueue
from rlep.config.settings import parse_config
from rlep.core.types import (
    AddReport,
    Completion,
    Float32Array,
    Prompt,
    Provenance,
    Reissued,
    Request,
    Sampling,
    SequenceBatch,
    Trajectory,
    UpdateOutcome,
    Verdict,
    prompt_id_of,
)
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics

if TYPE_CHECKING:
    from benchmarks.parts.simulated import Lengths, Silent, Verifiers
else:  # a script's own directory is where it imports from
    try:
        from parts.simulated import Lengths, Silent, Verifiers
    except ModuleNotFoundError:
        from simulated import Lengths, Silent, Verifiers

GENERATORS, SLOTS = 64, 256
FRESH, REPLAYS, LIMIT = 16, 2, 20_480
SHORT = Lengths(700, 0.6, 3_072)
STEP_S = 160.0
CORRECT = Verdict("correct", "2", "math", "1")


class Generators:
    """64 workers that pull from the queue and answer at once."""

    reissued = Reissued()

    def __init__(self, lengths: Lengths) -> None:
        self._length_of = cache(lengths.of)  # whose time is not the driver's
        self._queue = WorkQueue(lease_s=3600.0)

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Yield completions as they finish."""
        job = self._queue.put(requests, sampling)
        workers = [asyncio.create_task(self._work(f"generator-{number}")) for number in range(GENERATORS)]
        try:
            for _ in requests:
                item = await job.finished.get()
                assert isinstance(item, Completion)
                yield item
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, name: str) -> None:
        while True:
            await self._queue.wait_for_work(name)
            slots = min(SLOTS, self._queue.share(GENERATORS))
            taken = self._queue.take(name, max(1, slots // 4))
            if not taken:
                continue
            for entry in taken:
                response = response_to(entry.request, self._length_of(entry.request.seed))
                self._queue.finish(name, entry.job, response)
            await asyncio.sleep(0)


def response_to(request: Request, length: int) -> Completion:
    """Return a response of this length."""
    return Completion(
        request.id, request.prompt_id, request.sample, TOKENS[:length], LOGPROBS[:length], "stop", 0, "\\boxed{2}"
    )


TOKENS = np.arange(LIMIT, dtype=np.int32)
LOGPROBS = np.full(LIMIT, -0.5, dtype=np.float32)


@dataclass(frozen=True)
class Pool:
    """As many stored answers of each prompt as are asked for."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """Return ``count`` for each prompt."""
        return {one: [stored(one, number) for number in range(count)] for one in prompt_ids}

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Not asked here."""
        raise AssertionError("a training step stores nothing")

    async def digest(self) -> str:
        """Name the content."""
        return "memory"


def stored(prompt_id: str, number: int) -> Trajectory:
    """A replay of 700 tokens."""
    origin = Provenance("old", 0, "tok", Sampling(max_tokens=LIMIT))
    tokens = TOKENS[: 700 + number]
    return Trajectory(prompt_id, tokens, LOGPROBS[: len(tokens)], "stop", CORRECT, origin, 0.0)


class Learner:
    """Answers at once."""

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Return the same log-prob for all tokens."""
        return np.full(int(batch.sampled_lengths.sum()), -0.5, dtype=np.float32)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """Change nothing."""
        return UpdateOutcome(0.0, 0.0, 0.0, "", {})

    async def save(self, directory: Path) -> None:
        """Not asked here."""

    async def written(self) -> None:
        """Not asked here."""

    async def load(self, directory: Path) -> None:
        """Not asked here."""

    async def restart(self) -> None:
        """Not asked here."""


class Weights:
    """Nobody holds any."""

    async def publish(self, version: int) -> float:
        """Return no difference."""
        return 0.0


async def cpu_seconds(prompts: int, lengths: Lengths = SHORT) -> float:
    """CPU time of one step; the best of three."""
    config = parse_config(
        {
            "rollout": {"prompts": prompts, "fresh": FRESH, "max_tokens": lengths.limit},
            "replay": {"count": REPLAYS},
            "update": {"prompts": 64},
        }
    )
    run = Run(config, Roles(Generators(lengths), Verifiers()), Silent(), "tok", "base", "float32")
    asked = [
        Prompt(prompt_id_of(f"q{number}", "2"), f"q{number}", "2", np.arange(200, dtype=np.int32), "math")
        for number in range(prompts)
    ]
    best = float("inf")
    for _ in range(3):
        step = Step(run, Trainers(Learner(), Weights(), OnPolicyRollouts(run), Pool()), 0, REPLAYS, lambda *_: ())
        begun = time.process_time()
        step_metrics(await run_step(step, asked))
        best = min(best, time.process_time() - begun)
    return best


def main() -> None:
    """Measure and print."""
    once, twice = (asyncio.run(cpu_seconds(prompts)) for prompts in (512, 1024))
    print(
        json.dumps(
            {
                "driver_fraction_64_generators": round(once / STEP_S, 4),
                "driver_cpu_seconds": round(once, 2),
                "driver_doubled": round(twice / once, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
