"""A reward function or environment that the nodes of a joined cluster lack, or have in another version.

In a process of its own.

It writes to ``found.json`` what the check of the nodes says, and what ``rlep check`` and ``rlep train`` print.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster as RayCluster

from rlep.actors.cluster import Cluster
from rlep.actors.node_checks import check_nodes, trials_of
from rlep.config.roles import ClusterConfig
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from tests.cluster.own_cluster import run_on_own_cluster
from tests.small import BASE, options, small_task

GAME = (
    "\nclass Game:\n    def reset(self, **row: object) -> None: ...\n    def step(self, text: str) -> str | None: ...\n"
)
HERE = "def grade(reference, response):\n    return 1\n" + GAME
THERE = "def grade(reference, response):\n    return 0\n" + GAME


async def said(cluster: Cluster, profile: str, **selected: str) -> str:
    """The sentence of a verifier's check, or of its error."""
    return await tried(cluster, Config().with_values(verifier={"profile": profile, "label_selector": selected}))


async def tried(cluster: Cluster, config: Config) -> str:
    """The sentence of the check of a config's last role, or of its error."""
    try:
        return await check_nodes(cluster, trials_of(config)[-1])
    except ConfigError as error:
        return str(error)


async def played(cluster: Cluster, module: str, **selected: str) -> str:
    """The sentence of an environment's check, or of its error."""
    keys = {"factory": f"{module}:Game", "label_selector": selected}
    return await tried(cluster, Config().with_values(environment=keys))


async def examined(home: Path, ray_cluster: RayCluster) -> dict[str, Any]:
    """What is said of functions on two nodes, and of one node."""
    ray_cluster.add_node(num_cpus=1, labels={"verifies": "yes"})
    (home / "here").mkdir()
    (home / "here" / "rewards_of_two.py").write_text(HERE)
    sys.path.insert(0, str(home / "here"))
    cluster = Cluster(ClusterConfig(address=ray_cluster.address), "nodes")
    await asyncio.to_thread(cluster.connect)
    found = {
        "address": ray_cluster.address.partition(":")[0],
        "same": await said(cluster, "python:rewards_of_one:grade"),
        "labelled": await said(cluster, "python:rewards_of_one:grade", verifies="yes"),
        "missing": await said(cluster, "python:rewards_of_none:grade"),
        "other": await said(cluster, "python:rewards_of_two:grade"),
        "plays": await played(cluster, "rewards_of_one", verifies="yes"),
        "missing game": await played(cluster, "rewards_of_none"),
        "other game": await played(cluster, "rewards_of_two"),
    }
    await asyncio.to_thread(cluster.close)
    words = [f'cluster.address="{ray_cluster.address}"', f'run.directory="{home / "run"}"']
    words = [*small_task(home), *words, "verifier.profile=python:rewards_of_two:grade", "run.name=nodes"]
    environment = os.environ | {"PYTHONPATH": f"{home / 'here'}:{os.environ['PYTHONPATH']}"}
    for command in ("check", "train"):
        line = [sys.executable, "-m", "rlep", command, str(BASE), *options(words)]
        done = await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, env=environment, check=False, timeout=240
        )
        found[command] = f"{done.returncode}\n{done.stdout}{done.stderr}"
    return found


if __name__ == "__main__":
    there = Path(sys.argv[1], "there")
    there.mkdir()
    for name in ("rewards_of_one", "rewards_of_two"):
        (there / f"{name}.py").write_text(THERE)
    sys.path.insert(0, str(there))
    run_on_own_cluster(examined, PYTHONPATH=f"{there}:{os.environ.get('PYTHONPATH', '')}")
