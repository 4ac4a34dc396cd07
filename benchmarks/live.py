"""What live replay costs a step: inserting, drawing and memory, at the paper's size.

``python benchmarks/live.py [--json] [--out FILE]``, some minutes on two cores. The real ``LiveReplay``, pool actor and
embedded Redis; synthetic responses of 830 tokens on average with float32 log-probs. 17,000 prompts hold 16 responses each.
A step has 512 prompts × 16 responses, half of them correct, of which each is new; it replays 2 a prompt.

* ``insert_seconds``: ``learn`` of a step, after its updates: what is correct is stored, what it displaces is trimmed;
* ``draw_seconds``: ``draw_replays`` with ``selection = "most-probable"`` (ExGRPO's lowest entropy): all 16 of each prompt are
  fetched and ranked. The learner's scoring takes no time here;
* ``draw_uniform_seconds``: the same with ``"uniform"``, which fetches 2;
* ``memory_bytes_per_answer``: what Redis uses over the responses in it; ``index_bytes_per_answer``: of ``live.npz``;
* ``step_share``: inserting and drawing over a step of 100 s (goal 0.02);
* ``growth``: a draw over the same from 1,700 prompts (goal 1.2). Both alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rlep.actors.cluster import Cluster
from rlep.actors.pool_actor import PoolHost
from rlep.algorithms.packing import sequence_batch
from rlep.algorithms.shaping import Rewards
from rlep.config.roles import ClusterConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import (
    ALL,
    Float32Array,
    Group,
    Prompt,
    Provenance,
    Sampling,
    SequenceBatch,
    Trajectory,
    Verdict,
    prompt_id_of,
)
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.live_replay import FILE, LiveReplay
from rlep.driver.replays import draw_replays
from rlep.driver.step import StepOutcome
from rlep.driver.values import ScoredMiniBatch
from rlep.methods.replay_method import Visit
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.storage.connection import connect
from rlep.services.pool.values import PoolPlace

PROMPTS, SMALL, ASKED, FRESH, KEPT, TOKENS = 17_000, 1_700, 512, 16, 16, 830
STEP_S, TIMES = 100.0, 7
TOKENIZER = "0123456789abcdef0123456789abcdef"
PRESET = Path(__file__).parent.parent / "configs" / "paper" / "rlep.toml"


class Scorer:
    """A learner whose scores are there at once."""

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Uniform numbers ``[R]``, a function of the batch's size."""
        size = int(batch.sampled_lengths.sum())
        return -np.random.default_rng(size).random(size, dtype=np.float32)


class Responses:
    """Responses that are new each time."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self.prompts = [
            Prompt(prompt_id_of(str(number), "1"), str(number), "1", np.arange(200, dtype=np.int32))
            for number in range(PROMPTS)
        ]

    def step(self, prompts: list[Prompt], correct: int) -> tuple[ScoredMiniBatch, list[Visit]]:
        """A step's groups of ``FRESH`` with their log-probs, and its visits."""
        groups = [Group(prompt, 0, tuple(self._members(prompt, correct)), ()) for prompt in prompts]
        batch = sequence_batch(groups, np.zeros(len(groups) * FRESH))
        logprobs = -self._draw.exponential(0.35, int(batch.sampled_lengths.sum())).astype(np.float32)
        kept = np.ones(len(batch), np.bool_)
        rewards = Rewards(kept, np.zeros(len(batch)), kept)
        visits = [Visit(prompt.id, FRESH * (TOKENS + 200), correct, FRESH) for prompt in prompts]
        return ScoredMiniBatch(tuple(groups), rewards, batch, logprobs), visits

    def _members(self, prompt: Prompt, correct: int) -> list[Trajectory]:
        lengths = np.clip(self._draw.gamma(3, TOKENS / 3, FRESH), 16, 3072).astype(int)
        zipf = [np.minimum(self._draw.zipf(1.2, length), 150_000).astype(np.int32) for length in lengths]
        return [
            Trajectory(
                prompt.id,
                tokens,
                None,
                "stop",
                Verdict("correct" if number < correct else "wrong", "1", "math", "1"),
                Provenance(TOKENIZER, 0, TOKENIZER, Sampling()),
                1.7e9,
                f"train/0/{prompt.id}/{number}",
            )
            for number, tokens in enumerate(zipf)
        ]


class Bench:
    """A live pool of so many prompts, on a Redis of its own."""

    def __init__(self, cluster: Cluster, responses: Responses, directory: Path, count: int) -> None:
        sets = ['replay.source="live"', f"replay.per_question={KEPT}", "replay.minimum=1", "checkpoint.every=1000"]
        self.config = load_config([PRESET], [*sets, f'run.directory="{directory}"'])
        self.place = PoolPlace(None, directory / "redis", f"live{count}")
        self.host = PoolHost(cluster, self.place, 300.0, f"live{count}")
        self.pool = self.host.client(self.place.name, minimum=1, precision="float32")
        directory.mkdir()
        self.live = LiveReplay(self.config, self.pool, directory)
        self.responses, self.prompts, self.step_number = responses, responses.prompts[:count], 0
        self._choose = np.random.default_rng(count)

    async def fill(self) -> None:
        """Sixteen responses of every prompt."""
        await self.host.start()
        await self.pool.open(tokenizer_digest=TOKENIZER, cap=ALL)
        await self.live.restore(None, accept=False)
        for start in range(0, len(self.prompts), ASKED):
            await self.learn(self.prompts[start : start + ASKED], FRESH)

    async def learn(self, prompts: list[Prompt], correct: int) -> float:
        """Seconds of taking in a step."""
        made, visits = self.responses.step(prompts, correct)
        begun = time.perf_counter()
        step = step_of(self.config, self.live, self.step_number)
        step.visits = visits
        await self.live.learn(StepOutcome(step, (made,), (), 0.0), {})
        self.step_number += 1
        return time.perf_counter() - begun

    def some(self) -> list[Prompt]:
        """A step's prompts."""
        return [self.prompts[at] for at in self._choose.choice(len(self.prompts), ASKED, replace=False)]

    async def draw(self, selection: str) -> float:
        """Seconds of a step's draw."""
        chosen = self.config.replay.model_copy(update={"selection": selection})
        step = step_of(self.config.model_copy(update={"replay": chosen}), self.live, self.step_number)
        begun = time.perf_counter()
        drawn = await draw_replays(step, prompts := self.some())
        taken = time.perf_counter() - begun
        if any(len(drawn[prompt.id]) != 2 for prompt in prompts):
            raise RuntimeError("a prompt of the draw has fewer than 2 replays")
        return taken

    def sizes(self) -> dict[str, float]:
        """Bytes per response, in Redis and in a checkpoint."""
        directory = self.config.run.directory
        self.live.write(directory)
        index = (directory / FILE).stat().st_size
        server = EmbeddedRedis(self.place.directory)
        with connect(server.url, password_file=server.password_file) as client:
            used = client.info("memory")["used_memory"]
        held = len(self.prompts) * KEPT
        return {"memory_bytes_per_answer": round(used / held), "index_bytes_per_answer": round(index / held, 1)}


def step_of(config: Config, live: LiveReplay, number: int) -> Step:
    """What a draw needs of a step."""
    nothing: Any = None
    trainers = Trainers(Scorer(), nothing, nothing, live)  # type: ignore[arg-type]
    run = Run(config, Roles(nothing, nothing), nothing, TOKENIZER, TOKENIZER, "float32")
    return Step(run, trainers, number, config.replay.count, lambda *_: ())


async def measure(home: Path) -> dict[str, float]:
    """All figures."""
    cluster = Cluster(ClusterConfig(cpus=2), "bench-live")
    await asyncio.to_thread(cluster.connect)
    try:
        responses = Responses()
        small, large = (Bench(cluster, responses, home / str(count), count) for count in (SMALL, PROMPTS))
        await small.fill()
        await large.fill()
        times: dict[str, list[float]] = {"small": [], "draw": [], "uniform": [], "insert": []}
        for _ in range(TIMES):
            times["small"].append(await small.draw("most-probable"))
            times["draw"].append(await large.draw("most-probable"))
            times["uniform"].append(await large.draw("uniform"))
        sizes = large.sizes()
        for _ in range(TIMES):
            times["insert"].append(await large.learn(large.some(), FRESH // 2))
        for bench in (small, large):
            await bench.pool.close()
            await bench.host.close()
    finally:
        await asyncio.to_thread(cluster.close)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "insert_seconds": round(median["insert"], 3),
        "draw_seconds": round(median["draw"], 3),
        "draw_uniform_seconds": round(median["uniform"], 3),
        **sizes,
        "step_share": round((median["insert"] + median["draw"]) / STEP_S, 4),
        "growth": round(median["draw"] / median["small"], 2),
    }


def main() -> None:
    """Print the figures; the last line is one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of an indented object")
    parser.add_argument("--out", type=Path, help="also write them to this file, with the machine's description")
    chosen = parser.parse_args()
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as home:
        figures = asyncio.run(measure(Path(home)))
    print(json.dumps(figures, indent=None if chosen.json else 2))
    if chosen.out:
        chosen.out.write_text(json.dumps({"machine": machine} | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
