"""What episodes cost: a step beyond its generation, the prefix cache's hits in later turns, and calls of environments a second.

    python benchmarks/episodes.py [--parts step,prefixes,calls] [--episodes 20000] [--json FILE]

A step has 512 prompts × 16 episodes of 4 turns, with 64 simulated engines (``parts/episode_step.py``); medians of three:

* ``outside_generation``: part of the step in which the longest episode was not generated, at 20 ms a token. The clock is
  this process's CPU time and what it would have slept, so that what else runs on the machine does not count; the environment
  runs in this process. ``generation_seconds`` is what the engines' time alone would be, ``step_cpu_seconds`` the CPU time,
  simulated engines included;
* ``outside_generation_nothing_hidden``: all CPU time of a step with real environment workers and engines that answer at once,
  over it and ``generation_seconds``: as if none of it happened while engines generate. ``driver_cpu_seconds`` and
  ``workers_cpu_seconds`` are its parts, ``responses_cpu_seconds`` is the driver's with single responses of the same lengths;
* ``turns_to_their_engine``: later turns that came to an engine which had an earlier one of the episode;
* ``cached_of_common``, ``cached_of_common_half_room``: tokens that later turns took from a real vLLM's prefix cache, over
  those that they have in common with the turn before, in whole blocks (``parts/episode_prefixes.py``).

Calls of two worker processes:

* ``game_calls_per_second``: guess the number; an episode is a beginning, eight guesses and an end;
* ``tool_calls_per_second``: the calculator, with eight calls in place of the guesses;
* ``actor_calls_per_second``: the game in an actor, as a run has it, with the same two workers;
* ``driver_cpu_us_per_call``: CPU time of a call of that in the driver's process;
* ``parent_cpu_us_per_call`` and ``worker_cpu_us_per_call``: CPU time of a call in the game, here and in the workers: unlike
  calls a second, they do not depend on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rlep.actors.cluster import Cluster
from rlep.actors.environments import EnvironmentPool
from rlep.config.environment import EnvironmentConfig
from rlep.config.roles import ClusterConfig
from rlep.core.episodes import Action, ToolCall
from rlep.driver.ports import Environments
from rlep.services.environment.local import local_environments

if TYPE_CHECKING:
    from benchmarks.parts.episode_step import cpu_below, simulated_step, step_at_once
else:  # a script's own directory is where it imports from
    try:
        from parts.episode_step import cpu_below, simulated_step, step_at_once
    except ModuleNotFoundError:
        from benchmarks.parts.episode_step import cpu_below, simulated_step, step_at_once

RESULTS = Path(__file__).parent / "results" / "episodes.json"
GAME = "rlep.environments.guess_number:GuessNumber"
Home = Callable[[EnvironmentConfig], AbstractAsyncContextManager[Environments]]
"""Starts environments and ends them."""
WORKERS = 2
TURNS = 8
AT_ONCE = 256
"""Episodes in play at a time."""
SUM: Action = (ToolCall("evaluate", '{"expression": "(17 + 4) * 3 / 2"}'),)


PARTS = ("step", "prefixes", "calls")
ROUNDS = 3


def main() -> None:
    """Measure the parts and write the figures beside those of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    figures: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for part in arguments.parts.split(","):
        figures[part] = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, shared"
        }
        figures[part] |= {"step": step, "prefixes": prefixes, "calls": lambda: calls(arguments.episodes)}[part]()
    print(json.dumps(figures, indent=2))
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def step() -> dict[str, Any]:
    """Figures of a step."""
    simulated = [simulated_step() for _ in range(ROUNDS)]
    at_once = [step_at_once(episodes=True) for _ in range(ROUNDS)]
    single = [step_at_once(episodes=False) for _ in range(ROUNDS)]
    generation = simulated[0].generation
    all_cpu = median(one.cpu + one.workers_cpu for one in at_once)
    return {
        "outside_generation": round(median(1 - generation / one.wall for one in simulated), 4),
        "generation_seconds": round(generation, 1),
        "step_cpu_seconds": round(median(one.cpu for one in simulated), 1),
        "outside_generation_nothing_hidden": round(all_cpu / (all_cpu + generation), 4),
        "driver_cpu_seconds": round(median(one.cpu for one in at_once), 2),
        "workers_cpu_seconds": round(median(one.workers_cpu for one in at_once), 2),
        "responses_cpu_seconds": round(median(one.cpu for one in single), 2),
        "turns_to_their_engine": round(median(one.at_home for one in simulated), 4),
    }


def prefixes() -> dict[str, Any]:
    """Figures of the prefix cache, each of an engine of its own."""
    script = Path(__file__).parent / "parts" / "episode_prefixes.py"
    rooms = {"cached_of_common": 1.0, "cached_of_common_half_room": 0.5}

    def measured(room: float) -> tuple[float, int]:
        done = subprocess.run([sys.executable, script, str(room)], capture_output=True, text=True, check=True)
        share, turns = json.loads(done.stdout.splitlines()[-1])
        return round(share, 4), turns

    found = {name: sorted(measured(room) for _ in range(ROUNDS))[ROUNDS // 2] for name, room in rooms.items()}
    return {name: share for name, (share, _) in found.items()} | {"later_turns": found["cached_of_common"][1]}


def calls(count: int) -> dict[str, Any]:
    """Figures of two workers, and of the actor that has them."""
    game, parent, workers = asyncio.run(played(GAME, "0", count))
    tool, *_ = asyncio.run(played("rlep.environments.calculator:Calculator", SUM, count))
    acted, driver, _ = asyncio.run(played(GAME, "0", count, home=actor))
    return {
        "workers": WORKERS,
        "episodes": count,
        "game_calls_per_second": round(game),
        "tool_calls_per_second": round(tool),
        "actor_calls_per_second": round(acted),
        "driver_cpu_us_per_call": round(driver * 1e6, 1),
        "parent_cpu_us_per_call": round(parent * 1e6, 1),
        "worker_cpu_us_per_call": round(workers * 1e6, 1),
    }


async def played(
    factory: str, action: Action, count: int, home: Home = local_environments
) -> tuple[float, float, float]:
    """Calls a second of ``count`` episodes, and CPU seconds of a call in this process and in those below it."""
    async with home(EnvironmentConfig(factory=factory, workers=WORKERS)) as environments:
        return await played_in(environments, action, count)


@asynccontextmanager
async def actor(config: EnvironmentConfig) -> AsyncIterator[Environments]:
    """Have environments in an actor of a private cluster."""
    cluster = Cluster(ClusterConfig(cpus=2), "episodes")
    cluster.connect()
    pool = EnvironmentPool(cluster, config, idle_s=3600)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()
        cluster.close()


async def played_in(environments: Environments, action: Action, count: int) -> tuple[float, float, float]:
    """Return what ``played`` does."""
    waiting = iter(range(count))

    async def play() -> None:
        for number in waiting:
            await environments.begin(str(number), "{}", seed=number)
            for _ in range(TURNS):
                observation = await environments.act(str(number), action)
                if observation.status != "open":
                    raise RuntimeError(f"an episode ended early: {observation}")
            await environments.end(str(number))

    began, parent, workers = time.perf_counter(), time.process_time(), cpu_below()
    await asyncio.gather(*(play() for _ in range(AT_ONCE)))
    seconds = time.perf_counter() - began
    calls = count * (TURNS + 2)
    return calls / seconds, (time.process_time() - parent) / calls, (cpu_below() - workers) / calls


if __name__ == "__main__":
    main()
