"""The driver's own CPU time in a step with 64 simulated generators: 512 prompts × 16 answers, then twice the prompts.

Behind the driver's ports stand the real request queue with 64 workers that answer at once, a learner and a verifier that
take no time, and a pool in memory. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from rlep.driver.context import Run, Step
from rlep.driver.ports import Advance, Roles, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics

GENERATORS, SLOTS = 64, 256
FRESH, REPLAYS, LENGTH, LIMIT = 16, 2, 1000, 3072
STEP_S = 160.0
CORRECT = Verdict("correct", "2", "math", "1")


class Generators:
    """64 workers that pull from the queue and answer at once."""

    reissued = Reissued()

    def __init__(self) -> None:
        self._queue = WorkQueue(lease_s=3600.0)

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """See the port."""
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
            if taken is None:
                continue
            job, requests = taken
            for request in requests:
                self._queue.finish(name, job, answer(request))
            await asyncio.sleep(0)


def answer(request: Request) -> Completion:
    """About a thousand tokens."""
    length = LENGTH - request.seed % 500
    return Completion(
        request.id, request.prompt_id, request.sample, TOKENS[:length], LOGPROBS[:length], "stop", 0, "\\boxed{2}"
    )


TOKENS = np.arange(LENGTH, dtype=np.int32)
LOGPROBS = np.full(LENGTH, -0.5, dtype=np.float32)


class Verifiers:
    """Every other answer is right."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """See the port."""
        return [CORRECT if one.sample % 2 else Verdict("wrong", "3", "math", "1") for one in completions]


@dataclass(frozen=True)
class Pool:
    """As many stored answers of each prompt as are asked for."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """See the port."""
        return {one: [stored(one, number) for number in range(count)] for one in prompt_ids}

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Not asked here."""
        raise AssertionError("a training step stores nothing")

    async def digest(self) -> str:
        """See the port."""
        return "memory"


def stored(prompt_id: str, number: int) -> Trajectory:
    """A replay of 700 tokens."""
    origin = Provenance("old", 0, "tok", Sampling(max_tokens=LIMIT))
    tokens = TOKENS[: 700 + number]
    return Trajectory(prompt_id, tokens, LOGPROBS[: len(tokens)], "stop", CORRECT, origin, 0.0)


class Learner:
    """Answers at once."""

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """See the port."""
        return np.full(int(batch.response_lengths.sum()), -0.5, dtype=np.float32)

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """See the port."""
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
        """See the port."""
        return 0.0


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


async def cpu_seconds(prompts: int) -> float:
    """CPU time of one step; the better of three."""
    config = parse_config(
        {
            "rollout": {"prompts": prompts, "fresh": FRESH, "max_tokens": LIMIT},
            "replay": {"count": REPLAYS},
            "update": {"prompts": 64},
        }
    )
    run = Run(config, Roles(Generators(), Verifiers()), Silent(), "tok", "base", "float32")
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
