"""What the pipeline makes of two cores, and what its parts cost over the bare thing they stand on.

    python benchmarks/pipeline.py [--steps 20] [--parts streaming,replay,generator,publication,driver] [--json FILE]

* ``streamed_over_synchronous``: median step times of the quickstart's model, ``update.stream = true`` against the best
  synchronous setting of threads; both train on the same prompts from the same weights;
* ``bit_identical``: weights and optimizer state after 10 streamed steps equal those of 10 synchronous ones on the same answers;
  ``same_answers`` is the share of answers that were the same when both wrote their own;
* ``replay_added_fraction``: time that M = 2 adds to a step without replays, steps taken in turn;
  ``replay_share_of_learner``: what M more trajectories for each G add, if only the learner's time grew;
* ``generator_over_bare_vllm``: tokens per second of 512 answers through actor, queue and stream over vLLM's own ``generate``;
* ``publish_over_memcpy``: bytes per second of the learner's publishing 500 M weights over copying them in memory;
  ``load_over_memcpy`` and ``publish_and_load_over_memcpy``: the same with a real vLLM that takes them;
* ``driver_fraction_64_generators``: the driver's CPU time in a step of 512 prompts with 64 simulated generators, over 160 s;
  ``driver_doubled``: the same for 1,024 prompts, over the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.verifiers import VerifierPool
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Inputs, Subject
from rlep.cli.progress import TerminalProgress
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.types import Completion, Reissued, Request, Sampling, Verdict
from rlep.data.prompts import order_of
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.streamed import stream_step
from rlep.launch.roles import run_actors
from rlep.quickstart.task import build_task
from rlep.services.pool.rpc.async_client import AsyncPoolClient

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
BASE = Path(__file__).resolve().parents[1] / "rlep" / "quickstart" / "base.toml"
PARTS = ("streaming", "replay", "generator", "publication", "driver")
SUMMARY = (
    *("streamed_over_synchronous", "bit_identical", "generator_over_bare_vllm", "replay_added_fraction"),
    *("publish_over_memcpy", "driver_fraction_64_generators"),
)
REPLAYS = 2
COMPARED = 10
"""Steps after which weights are compared."""
THREADS = ((1, 1), (2, 2), (1, 2))
"""(generator, learner) threads of the synchronous settings; the streamed one has the first."""


@dataclass(eq=False)
class Recorded:
    """Generators whose answers are kept, and given again by ``again``."""

    inner: GeneratorPool
    answers: dict[str, Completion] = field(default_factory=dict)
    again: bool = False

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self.inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """See the port."""
        if self.again:
            for request in requests:
                yield self.answers[request.id]
            return
        async for one in self.inner.generate(requests, sampling, deadline_s=deadline_s):
            self.answers[one.request_id] = one
            yield one


@dataclass(eq=False)
class Cast:
    """Real actors on the quickstart's task, and how to make a step with them."""

    config: Config
    inputs: Inputs
    generators: Recorded
    verifiers: VerifierPool
    learners: Learners
    weights: WeightPublisher
    pool: AsyncPoolClient | None

    async def step(self, number: int, *, stream: bool = False, replays: int = 0) -> Made:
        """One step and what it took."""
        rule = self.config.replay.model_copy(update={"count": replays})
        config = self.config.model_copy(update={"replay": rule})
        run = Run(
            config, Roles(self.generators, self.verifiers), TerminalProgress(), "", "", config.generator.compute_dtype
        )
        run = replace(run, tokenizer_digest=self.inputs.tokenizer.digest)
        trainers = Trainers(self.learners, self.weights, OnPolicyRollouts(run), self.pool)
        assert self.inputs.train is not None
        order = order_of(config, self.inputs.train.report)
        prompts = [self.inputs.train.prompts[index] for index in order.step(number)]
        step = Step(run, trainers, number, replays, lambda *_: ())
        outcome = await (stream_step if stream else run_step)(step, prompts)
        return Made(outcome, step_metrics(outcome))

    async def begin(self, home: Path) -> None:
        """The weights saved at ``home`` on both sides, as version 0."""
        await self.learners.load(home)
        await self.weights.publish(0)

    async def save(self, home: Path) -> None:
        """Weights and optimizer state into a new directory."""
        await asyncio.to_thread(home.mkdir)
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
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    async with run_actors(config) as actors:
        generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
        service = actors.pool(inputs, read_only=False) if pool else None
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        yield Cast(config, inputs, Recorded(generators), verifiers, learners, weights, service)


async def streaming(home: Path, steps: int) -> dict[str, Any]:
    """Streamed against synchronous steps, and their weights."""
    synchronous: dict[str, float] = {}
    found: dict[str, Any] = {}
    for generator, learner in THREADS:
        name = f"{generator}+{learner} threads"
        first = (generator, learner) == THREADS[0]
        threads = (f"generator.threads={generator}", f"learner.threads={learner}")
        async with cast(settings(home, *threads, f"update.stream={str(first).lower()}")) as actors:
            start = home / f"start-{generator}-{learner}"
            await actors.save(start)
            await actors.begin(start)
            made = [await actors.step(number) for number in range(steps + 2)][2:]
            synchronous[name] = statistics.median(one.seconds() for one in made)
            print(f"synchronous, {name}: {phases(made)}", flush=True)
            if first:
                found = await streamed(actors, start, steps)
    best = min(synchronous.values())
    return {
        "streamed_over_synchronous": round(best / found["seconds"], 3),
        "synchronous_seconds": {name: round(seconds, 3) for name, seconds in synchronous.items()},
        **found,
    }


async def streamed(actors: Cast, start: Path, steps: int) -> dict[str, Any]:
    """The streamed arm, and the comparison of weights."""
    written = dict(actors.generators.answers)
    await actors.begin(start)
    made: list[Made] = []
    homes = [start.with_name(f"{start.name}-{name}") for name in ("streamed", "synchronous")]
    while len(made) < steps + 2:
        made.append(await actors.step(len(made), stream=True))
        if len(made) == COMPARED:
            await actors.save(homes[0])
    print(f"streamed: {phases(made[2:])}", flush=True)
    same = sum(one.tokens.tolist() == written[key].tokens.tolist() for key, one in actors.generators.answers.items())
    actors.generators.again = True
    await actors.begin(start)
    for number in range(COMPARED):
        await actors.step(number)
    await actors.save(homes[1])
    actors.generators.again = False
    return {
        "bit_identical": tensors(homes[0]) == tensors(homes[1]) != tensors(start),
        "same_answers": round(same / len(written), 4),
        "seconds": round(statistics.median(one.seconds() for one in made[2:]), 3),
    }


async def replay(home: Path, steps: int) -> dict[str, Any]:
    """Steps with and without replays in turn, on the same prompts with the same seeds."""
    config = settings(home)
    async with cast(config, pool=True) as actors:
        await actors.save(home / "start-replay")
        await actors.begin(home / "start-replay")
        assert actors.inputs.train is not None
        for number in range(len(actors.inputs.train) // config.rollout.prompts):
            await store(actors, await actors.step(number))
        made: dict[int, list[Made]] = {0: [], REPLAYS: []}
        for number in range(steps + 1):
            for count, arm in made.items():
                await actors.weights.publish(number)
                arm.append(await actors.step(number, replays=count))
    without, with_them = made[0][1:], made[REPLAYS][1:]
    print(f"without replays: {phases(without)}\nwith replays: {phases(with_them)}", flush=True)
    base = statistics.median(one.seconds() for one in without)
    learner = statistics.median(one.seconds("score") + one.seconds("update") for one in without)
    return {
        "replay_added_fraction": round(statistics.median(one.seconds() for one in with_them) / base - 1, 4),
        "replay_share_of_learner": round(learner / base * REPLAYS / config.rollout.fresh, 4),
        "replays_per_group": round(statistics.fmean(one.metrics["replay/trajectories"] for one in with_them) / 32, 2),
    }


async def store(actors: Cast, made: Made) -> None:
    """Answers that ended by themselves, declared right, as replays of their prompts: only their lengths matter here."""
    assert actors.pool is not None
    right = Verdict("correct", "0", "math", "1")
    members = [one for ready in made.outcome.mini_batches for group in ready.groups for one in group.fresh]
    report = await actors.pool.add([replace(one, verdict=right) for one in members if one.finish_reason == "stop"])
    if report.refused:
        raise RuntimeError(f"the pool refused {report.refused[0]}")


def phases(made: Sequence[Made]) -> str:
    """Median seconds of the parts of steps."""
    names = ("step", "generate", "score", "update", "publish")
    return ", ".join(f"{name} {statistics.median(one.seconds(name) for one in made):.3f}" for name in names)


def tensors(home: Path) -> dict[str, tuple[str, bytes]]:
    """Every tensor of a checkpoint by file and name, as dtype and bytes; files may hold them in any order."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in sorted(home.rglob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensor = file.get_tensor(name)
                found[f"{path.relative_to(home)}:{name}"] = str(tensor.dtype), tensor.tobytes()
    return found


def script(part: str) -> dict[str, Any]:
    """The figures of a part that runs in a process of its own."""
    command = [sys.executable, str(Path(__file__).parent / "parts" / f"{part}.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Run the parts and write the figures; the last line of the output is the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each arm")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}; with commas between")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=RESULTS, default=RESULTS, help="where figures are written"
    )
    arguments = parser.parse_args()
    wanted = arguments.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start",
        "steps": arguments.steps,
    }
    for part in wanted:
        begun = time.perf_counter()
        if part in STEPS:
            with tempfile.TemporaryDirectory(prefix="rlep-bench-") as home:
                figures |= asyncio.run(STEPS[part](Path(home), arguments.steps))
        else:
            figures |= script(part)
        print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
    print(json.dumps(figures, indent=2))
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps({name: figures.get(name) for name in SUMMARY}))


STEPS = {"streaming": streaming, "replay": replay}

if __name__ == "__main__":
    main()
