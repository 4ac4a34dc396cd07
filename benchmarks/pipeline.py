"""What the pipeline makes of two cores, and what its parts cost over the bare thing they stand on.

    python benchmarks/pipeline.py [--steps 20] [--parts streaming,replay,generator,publication,driver] [--json FILE]

* ``streamed_over_synchronous``: median step times of the quickstart's model, ``update.stream = "fixed"`` against the best
  synchronous setting of threads; both train on the same prompts from the same weights;
* ``bit_identical``: weights and optimizer state after 10 streamed steps equal those of 10 synchronous ones on the same answers;
  ``same_answers`` is the share of answers that were the same when both wrote their own;
* ``replay_added_fraction``: time that M = 2 adds to a step without replays, steps taken in turn;
  ``replay_share_of_learner``: what M more trajectories for each G add, if only the learner's time grew;
* ``generator_over_bare_vllm``: tokens per second of 512 answers through actor, queue and stream over vLLM's own ``generate``;
* ``publish_over_memcpy``: bytes per second of publishing 500 M weights over copying them in memory;
* ``driver_fraction_64_generators``: the driver's CPU time in a step of 512 prompts with 64 simulated generators, over 160 s;
  ``driver_doubled``: the same for 1,024 prompts, over the first.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlep.actors.generators import Generators
from rlep.actors.learners import Learners
from rlep.actors.pool import PoolService
from rlep.actors.verifiers import Verifiers
from rlep.actors.weights import WeightPublisher
from rlep.algorithms.in_flight import InFlight
from rlep.cli.compose import Inputs, Stage, generator_dtype, read_inputs, stage
from rlep.cli.progress import Bars
from rlep.config import Config
from rlep.driver import ports
from rlep.driver.context import Run, Step
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.prompts import PromptOrder
from rlep.quickstart.task import build_task
from rlep.settings import load_config
from rlep.types import Completion, Prompt, Request, Sampling, Verdict

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
BASE = Path(__file__).resolve().parents[1] / "rlep" / "quickstart" / "base.toml"
PARTS = ("streaming", "replay", "generator", "publication", "driver")
SUMMARY = (
    *("streamed_over_synchronous", "bit_identical", "generator_over_bare_vllm", "replay_added_fraction"),
    *("publish_over_memcpy", "driver_fraction_64_generators"),
)
COMPARED = 10
"""Steps after which weights are compared."""
THREADS = ((1, 1), (2, 2), (1, 2))
"""(generator, learner) threads of the synchronous settings; the streamed one has the first."""


@dataclass(eq=False)
class Recorded:
    """Generators whose answers are kept, and given again by ``again``."""

    inner: Generators
    answers: dict[str, Completion] = field(default_factory=dict)
    again: bool = False

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float, in_flight: int | None = None
    ) -> AsyncIterator[Completion]:
        """See the port."""
        if self.again:
            for request in requests:
                yield self.answers[request.id]
            return
        async for one in self.inner.generate(requests, sampling, deadline_s=deadline_s, in_flight=in_flight):
            self.answers[one.request_id] = one
            yield one


@dataclass(eq=False)
class Cast:
    """Real actors on the quickstart's task, and how to make a step with them."""

    config: Config
    inputs: Inputs
    generators: Recorded
    verifiers: Verifiers
    learners: Learners
    weights: WeightPublisher
    pool: PoolService | None

    async def step(self, number: int, *, stream: str = "off", in_flight: int | None = None, replays: int = 0) -> Made:
        """One step and what it took."""
        sections = {
            "update": self.config.update.model_copy(update={"stream": stream}),
            "replay": self.config.replay.model_copy(update={"count": replays}),
        }
        config = self.config.model_copy(update=sections)
        run = Run(config, ports.Roles(self.generators, self.verifiers), Bars(), "", "", generator_dtype(config))
        run = replace(run, tokenizer_digest=self.inputs.tokenizer.digest)
        trainers = ports.Trainers(self.learners, self.weights, self.pool)
        assert self.inputs.train is not None
        order = PromptOrder(len(self.inputs.train), config.rollout.prompts, config.run.seed)
        prompts = [self.inputs.train.prompts[index] for index in order.step(number)]
        step = Step(run, trainers, number, replays, lambda *_: (), in_flight=in_flight)
        outcome = await run_step(step, prompts)
        return Made(outcome, step_metrics(outcome))

    async def begin(self, home: Path) -> None:
        """The first weights again, on both sides."""
        if home.exists():
            await self.learners.load(home)
        else:
            home.mkdir()
            await self.save(home)
        await self.weights.publish(0)

    async def save(self, home: Path) -> None:
        """Weights and optimizer state."""
        await self.learners.save(home)
        await self.learners.written()


@dataclass(frozen=True)
class Made:
    """A finished step."""

    outcome: StepOutcome
    metrics: dict[str, Any]

    def seconds(self, phase: str = "step") -> float:
        """Wall time of a phase."""
        return float(self.metrics[f"time/{phase}"])


def settings(home: Path, *overrides: str) -> Config:
    """The quickstart's config with every second of it in this directory."""
    task = build_task(home / "task")
    return load_config(
        [BASE],
        [
            *(f'model.path="{task.model_dir}"', f'data.train="{task.train}"', "data.evaluation=[]"),
            *(f'pool.directory="{home / "pool"}"', f'run.directory="{home / "run"}"', "run.name=bench-pipeline"),
            *("cluster.cpus=8", *overrides),
        ],
    )


@asynccontextmanager
async def cast(config: Config, *, pool: bool = False) -> AsyncIterator[Cast]:
    """All actors, started."""
    inputs = read_inputs(config)
    assert inputs.train is not None
    async with stage(config) as actors:
        generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
        service = actors.pool(inputs.tokenizer, read_only=False) if pool else None
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        yield Cast(config, inputs, Recorded(generators), verifiers, learners, weights, service)


async def streaming(home: Path, steps: int) -> dict[str, Any]:
    """Streamed against synchronous steps, and their weights."""
    synchronous: dict[str, float] = {}
    found: dict[str, Any] = {}
    for generator, learner in THREADS:
        name = f"{generator}+{learner} threads"
        config = settings(home, f"generator.threads={generator}", f"learner.threads={learner}")
        async with cast(config) as actors:
            start = home / f"start-{generator}-{learner}"
            await actors.begin(start)
            made = [await actors.step(number) for number in range(steps + 2)][2:]
            synchronous[name] = statistics.median(one.seconds() for one in made)
            print(f"synchronous, {name}: {phases(made)}", flush=True)
            if (generator, learner) == THREADS[0]:
                found = await streamed(actors, start, steps)
    best = min(synchronous.values())
    return {
        "streamed_over_synchronous": round(best / found["seconds"], 3),
        "synchronous_seconds": {name: round(seconds, 3) for name, seconds in synchronous.items()},
        **found,
    }


async def streamed(actors: Cast, start: Path, steps: int) -> dict[str, Any]:
    """The streamed arm with the number in flight that it finds, and the comparison of weights."""
    written = dict(actors.generators.answers)
    await actors.begin(start)
    rollout, update = actors.config.rollout, actors.config.update
    chosen = InFlight(update.prompts * rollout.fresh, rollout.prompts // update.prompts)
    made: list[Made] = []
    homes = [start.with_name(f"{start.name}-{name}") for name in ("streamed", "synchronous")]
    while len(made) < steps + 2:
        made.append(await actors.step(len(made), stream="fixed", in_flight=chosen.now))
        chosen.record(made[-1].seconds(), int(made[-1].metrics["rollout/tokens"]))
        if len(made) == COMPARED:
            homes[0].mkdir()
            await actors.save(homes[0])
    print(f"streamed: {phases(made[2:])}, in flight {[one.metrics['rollout/in_flight'] for one in made]}", flush=True)
    same = sum(one.tokens.tolist() == written[key].tokens.tolist() for key, one in actors.generators.answers.items())
    actors.generators.again = True
    await actors.begin(start)
    for number in range(COMPARED):
        await actors.step(number)
    homes[1].mkdir()
    await actors.save(homes[1])
    actors.generators.again = False
    return {
        "bit_identical": equal_files(*homes),
        "same_answers": round(same / len(written), 4),
        "seconds": round(statistics.median(one.seconds() for one in made[2:]), 3),
        "in_flight": made[-1].metrics["rollout/in_flight"],
        "early_updates": statistics.median(one.metrics["update/early"] for one in made[2:]),
    }


def phases(made: Sequence[Made]) -> str:
    """Median seconds of the parts of steps."""
    names = ("step", "generate", "score", "update", "publish")
    return ", ".join(f"{name} {statistics.median(one.seconds(name) for one in made):.3f}" for name in names)


def equal_files(first: Path, second: Path) -> bool:
    """Whether two checkpoints hold the same bytes under the same names."""
    names = [sorted(path.relative_to(home) for path in home.rglob("*.safetensors")) for home in (first, second)]
    return bool(names[0]) and names[0] == names[1] and all(
        filecmp.cmp(first / name, second / name, shallow=False) for name in names[0]
    )


def main() -> None:
    """Run the parts and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each arm")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, with commas between")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlep-bench-") as home:
        print(json.dumps(asyncio.run(streaming(Path(home), arguments.steps)), indent=2))


if __name__ == "__main__":
    main()
