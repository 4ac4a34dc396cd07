"""Speed of environments: calls a second that two worker processes answer.

    python benchmarks/episodes.py [--episodes 20000] [--json FILE]

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
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from rlep.actors.cluster import Cluster
from rlep.actors.environments import EnvironmentPool
from rlep.config.environment import EnvironmentConfig
from rlep.config.roles import ClusterConfig
from rlep.core.episodes import Action, ToolCall
from rlep.driver.ports import Environments
from rlep.services.environment.local import local_environments

RESULTS = Path(__file__).parent / "results" / "episodes.json"
GAME = "rlep.environments.guess_number:GuessNumber"
Home = Callable[[EnvironmentConfig], AbstractAsyncContextManager[Environments]]
"""Starts environments and ends them."""
WORKERS = 2
TURNS = 8
AT_ONCE = 256
"""Episodes in play at a time."""
SUM: Action = (ToolCall("evaluate", '{"expression": "(17 + 4) * 3 / 2"}'),)


def main() -> None:
    """Run both games and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    game, parent, workers = asyncio.run(played(GAME, "0", arguments.episodes))
    tool, *_ = asyncio.run(played("rlep.environments.calculator:Calculator", SUM, arguments.episodes))
    acted, driver, _ = asyncio.run(played(GAME, "0", arguments.episodes, home=actor))
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start",
        "workers": WORKERS,
        "episodes": arguments.episodes,
        "game_calls_per_second": round(game),
        "tool_calls_per_second": round(tool),
        "actor_calls_per_second": round(acted),
        "driver_cpu_us_per_call": round(driver * 1e6, 1),
        "parent_cpu_us_per_call": round(parent * 1e6, 1),
        "worker_cpu_us_per_call": round(workers * 1e6, 1),
    }
    print(json.dumps(figures, indent=2))
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


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

    began, parent, workers = time.perf_counter(), time.process_time(), below()
    await asyncio.gather(*(play() for _ in range(AT_ONCE)))
    seconds = time.perf_counter() - began
    calls = count * (TURNS + 2)
    return calls / seconds, (time.process_time() - parent) / calls, (below() - workers) / calls


def below() -> float:
    """CPU seconds of the processes below this one."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))


if __name__ == "__main__":
    main()
