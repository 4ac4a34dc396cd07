"""What overlap makes of generators and learners: the real driver, queue, actors and wings on simulated devices.

``python benchmarks/overlap.py [--json] [--out FILE] [--parts 3k,20k,full,driver]``, about 10 minutes on two cores. Ray places the
actors of a run; in them a generator takes its tokens' time and a learner rank its batch's, and both send arrays of real size.

* ``3k``, ``20k``: steps of 64 questions × 16 responses on eight devices, ``split`` four and four or ``colocated`` on all. Lengths
  are log-normal: median 700, σ 0.6, at most 3,072 tokens; median 3,000, σ 0.8, at most 20,480. Each response takes a slot (64 a
  generator) for its length. The learner's speed is such that its work takes as long as the rollout, a quarter of it for scoring.
  A publication, and a sleep or wake-up of one side, takes 1 % of the step.
* ``full``: one step of 512 × 16 responses of up to 3,072 and one of up to 20,480 tokens over 64 generators with 128 slots each,
  scaled to 100 s: what it takes beyond its devices' time, what the driver's process computes meanwhile, and what goes through
  Ray's object store (that of a private cluster, which must not spill).
* ``driver``: ``driver_cpu_seconds``, the processor seconds of the driver's process in one step of 512 × 16 responses of both
  lengths, without Ray: the real loop and request queue, 64 generators that answer at once, a learner, verifiers and a pool in
  memory. Goal: ≤ 3 s for 20,480 tokens. ``driver_cpu_seconds_with_ray`` are those of the ``full`` step.

``…_over_split`` is a median step's time over that of the synchronous ``split`` one; ``bounds`` are the longer of both roles alone
and their sum, over the same. Goals: ``streamed`` ≤ 0.80, ``staleness1`` ≤ 0.55, ``driver_fraction`` ≤ 0.02: of the ``full`` step,
what its devices do not account for, with all actors on this machine's cores; ``driver_cpu_fraction`` is the CPU time of the
driver's process. Grading is not simulated: it answers at once. The last line has the worst of each figure, and
``driver_fraction`` of the step of 3,072 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import ray

from rlep.config.schema import Config
from rlep.config.settings import parse_config
from rlep.core.types import Prompt, SequenceBatch, prompt_id_of
from rlep.data.prompts import PromptReport, PromptSet, order_of
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.rollout import requests_for
from rlep.driver.step_metrics import step_metrics
from rlep.launch.roles import RunActors, run_actors
from rlep.launch.wings import choose_step, rollouts

if TYPE_CHECKING:
    from benchmarks.parts.driver import cpu_seconds
    from benchmarks.parts.simulated import Devices, Lengths, Silent, Verifiers, simulated_generator, simulated_learner
else:  # a script's own directory is where it imports from
    from parts.driver import cpu_seconds
    from parts.simulated import Devices, Lengths, Silent, Verifiers, simulated_generator, simulated_learner

FRESH, PROMPT_TOKENS = 16, 200
SLOTS = 64
STEP_S = 100.0
"""Of the ``full`` part."""
FULL = ("driver_fraction", "driver_cpu_fraction")
SUMMARY = ("streamed_over_split", "staleness1_over_split", "colocated_over_split")
ARMS: dict[str, dict[str, Any]] = {
    "split": {},
    "streamed": {"update": {"stream": True}},
    "staleness1": {"rollout": {"max_staleness": 1}, "loss": {"correction": {"weight": "token", "cap": 2}}},
    "colocated": {"cluster": {"placement": "colocated"}, "generator": {"count": 8}, "learner": {"ranks": 8}},
}


LENGTHS = {"3k": Lengths(700, 0.6, 3_072), "20k": Lengths(3_000, 0.8, 20_480)}


@dataclass(frozen=True)
class Made:
    """A finished step."""

    seconds: float
    generate_s: float
    """From its first request to its last response."""
    cpu_s: float
    """Of the driver's process."""
    put_bytes: int
    """Batches for the learner."""
    streamed_bytes: int
    """Responses from the generators."""


def config_of(prompts: int, limit: int, home: Path, *changes: dict[str, Any]) -> Config:
    """A run on simulated devices; actors ask for next to no CPUs, so that all fit on this machine."""
    settings: dict[str, dict[str, Any]] = {
        "model": {"path": str(home)},
        "data": {"train": "none", "max_prompt_tokens": PROMPT_TOKENS},
        "run": {"name": "overlap", "directory": str(home), "steps": 100},
        "rollout": {"prompts": prompts, "fresh": FRESH, "max_tokens": limit},
        "reward": {"overlong_buffer": 0},
        "replay": {"count": 0},
        "update": {"prompts": prompts // 8},
        "generator": {"count": 4, "cpus": 0.001, "max_sequences": SLOTS},
        "learner": {"ranks": 4, "cpus": 0.001},
        "cluster": {"cpus": 2, "place_deadline_s": 300},
    }
    for change in changes:
        for section, keys in change.items():
            settings[section] = settings.get(section, {}) | keys
    return parse_config(settings)


def prompt_set(count: int) -> PromptSet:
    """Questions of 200 tokens."""
    tokens = np.arange(PROMPT_TOKENS, dtype=np.int32)
    names = [f"question {number}" for number in range(count)]
    report = PromptReport(count, count, 0, 0, 0, 0, (), PROMPT_TOKENS)
    return PromptSet(tuple(Prompt(prompt_id_of(name, "2"), name, "2", tokens, "math") for name in names), report)


async def steps_of(config: Config, devices: Devices, steps: int) -> list[Made]:
    """Real steps; with two or more of them the first, in which nothing was prefetched, is not counted."""
    devices = replace(devices, ranks=config.learner.ranks, slots=config.generator.max_sequences)
    with (
        patch("rlep.actors.generators.GeneratorActor", simulated_generator(devices)),
        patch("rlep.actors.learners.LearnerActor", simulated_learner(devices)),
    ):
        async with run_actors(config) as actors:
            made = await make_steps(config, actors, steps)
            home = actors.cluster.home or Path()
            if spilled := [file for file in home.glob("**/ray_spilled_objects*/*") if file.is_file()]:
                raise RuntimeError(f"Ray's object store spilled {len(spilled)} files to disk")
    return made[steps > 1 :]


async def make_steps(config: Config, actors: RunActors, steps: int) -> list[Made]:
    """As ``rlep train`` makes them, without evaluations and checkpoints."""
    train, made = prompt_set(2 * config.rollout.prompts), []
    order = order_of(config, train.report)
    generating, learning = actors.generators(), actors.learners()
    await actors.started()
    publishing = actors.weights(learning, generating, train.prompts)
    generate, learn, publish = actors.ports(generating, learning, publishing)
    await publish.publish(0)
    run = Run(config, Roles(generate, Verifiers()), Silent(), "tok", "base", "float32")
    trainers = Trainers(learn, publish, rollouts(run, train), None)
    try:
        for number in range(steps):
            prompts = [train.prompts[index] for index in order.step(number)]
            with counted_puts() as put:
                begun = time.process_time()
                outcome = await choose_step(config)(Step(run, trainers, number, 0, lambda *_: ()), prompts)
                metrics = step_metrics(outcome)
                used = time.process_time() - begun
            found = {key: float(str(metrics[f"time/{key}"])) for key in ("step", "generate")}
            streamed = 12 * int(str(metrics["rollout/tokens"]))  # id, log-prob, four characters
            made.append(Made(found["step"], found["generate"], used, sum(put), streamed))
    finally:
        await trainers.rollouts.drop()
    return made


@contextmanager
def counted_puts() -> Iterator[list[int]]:
    """The bytes of every batch that the block puts into the object store."""
    put, found = ray.put, list[int]()

    def counting(batch: SequenceBatch) -> Any:
        arrays = [getattr(batch, one.name) for one in fields(batch)]
        found.append(sum(array.nbytes for array in arrays if array is not None))
        return put(batch)

    with patch("ray.put", counting):
        yield found


def rollout_tokens(lengths: Lengths, prompts: int) -> tuple[list[int], int]:
    """Lengths of a rollout in the order of its requests, and all its tokens with prompts."""
    asked = prompt_set(prompts).prompts
    found = [lengths.of(one.seed) for one in requests_for(asked, FRESH, label="", seed=0, address=("rollout", 0))]
    return found, sum(found) + len(found) * PROMPT_TOKENS


def slots_until(lengths: Sequence[int], slots: int) -> int:
    """Token times until all responses end, each in the first slot that is free."""
    busy = [0] * slots
    for length in lengths:
        heapq.heapreplace(busy, busy[0] + length)
    return max(busy)


async def compare(name: str, home: Path) -> dict[str, Any]:
    """All arms with one distribution of lengths, at equal role times of about 10 s."""
    lengths, role_s, prompts = LENGTHS[name], 6.0, 64
    found, tokens = rollout_tokens(lengths, prompts)
    token = role_s / slots_until(found, 4 * SLOTS)
    devices = Devices(lengths, token, 4 * role_s / tokens, exchange=0.02 * role_s, ranks=4, slots=SLOTS)
    steps = {}
    for arm, changes in ARMS.items():
        steps[arm] = await steps_of(config_of(prompts, lengths.limit, home, changes), devices, 4)
        print(f"{name} {arm}: {[round(one.seconds, 1) for one in steps[arm]]} s", flush=True)
    seconds = {arm: statistics.median(one.seconds for one in made) for arm, made in steps.items()}
    generate = statistics.median(one.generate_s for one in steps["split"])
    roles = generate, seconds["split"] - generate
    return {
        "lengths": name,
        "seconds": seconds,
        "roles": {"generate": roles[0], "learn_and_publish": roles[1]},
        "bounds": {"longer_role": max(roles) / seconds["split"], "sum": 1.0},
        **{f"{arm}_over_split": seconds[arm] / seconds["split"] for arm in ARMS if arm != "split"},
        "driver_cpu_share": {
            arm: sum(m.cpu_s for m in made) / sum(m.seconds for m in made) for arm, made in steps.items()
        },
    }


async def full(home: Path) -> dict[str, Any]:
    """One step of full size for each distribution, over 64 generators."""
    rows = {}
    for name, lengths in LENGTHS.items():
        found, tokens = rollout_tokens(lengths, 512)
        devices = Devices(
            lengths, STEP_S / 2 / max(found), 4 * STEP_S / 2 / tokens, exchange=0.01 * STEP_S, ranks=4, slots=SLOTS
        )
        changes = {"generator": {"count": 64, "max_sequences": 128}}
        (made,) = await steps_of(config_of(512, lengths.limit, home, changes), devices, 1)
        rows[name] = {
            "seconds": made.seconds,
            "driver_fraction": (made.seconds - STEP_S - devices.exchange) / STEP_S,
            "driver_cpu_fraction": made.cpu_s / STEP_S,
            "driver_cpu_seconds_with_ray": made.cpu_s,
            "object_store_bytes_per_step": made.put_bytes + made.streamed_bytes,
        }
        print(f"full {name}: {rows[name]}", flush=True)
    largest = max(row["object_store_bytes_per_step"] for row in rows.values())
    return {"full": rows} | {key: rows["3k"][key] for key in FULL} | {"object_store_bytes_per_step": largest}


async def driver_alone() -> dict[str, Any]:
    """Processor seconds of the driver for a step of each length."""
    return {
        "driver_cpu_seconds": {name: round(await cpu_seconds(512, lengths), 2) for name, lengths in LENGTHS.items()}
    }


async def measure(part: str, home: Path) -> dict[str, Any]:
    """The figures of one part."""
    match part:
        case "full":
            return await full(home)
        case "driver":
            return await driver_alone()
        case _:
            return await compare(part, home)


def main() -> None:
    """Print the figures of each part; the last line is the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line per part, then the summary")
    parser.add_argument("--parts", default="3k,20k,full,driver", help="of 3k, 20k, full, driver")
    parser.add_argument("--out", type=Path, help="also write everything to this file, with the machine's description")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="rlep-bench-") as home:
        for part in chosen.parts.split(","):
            row = asyncio.run(measure(part, Path(home)))
            rows.append(row)
            print(json.dumps(row) if chosen.json else json.dumps(row, indent=2), flush=True)
    figures = {key: max(row[key] for row in rows if key in row) for key in SUMMARY if any(key in row for row in rows)}
    figures |= {
        key: row[key]
        for row in rows
        for key in ("driver_fraction", "object_store_bytes_per_step", "driver_cpu_seconds")
        if key in row
    }
    print(json.dumps(figures))
    if chosen.out:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
        chosen.out.write_text(json.dumps({"machine": machine, "rows": rows} | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
