"""A colocated learner and its generators on Ray's test cluster of two nodes; in a process of its own, whose token Ray reads once.

It writes to ``found.json`` the nodes of the bundles, the weights that each node had, and what was served.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster as RayCluster
from ray.util import placement_group_table

from rlep.actors.weight_sync import WeightPublisher
from rlep.config.settings import load_config
from rlep.core.types import Request, Sampling
from rlep.engines.weights.weight_update import SharedMemoryWeights, WeightUpdate
from rlep.launch.compose import read_inputs, run_actors
from tests.small import BASE, small_task
from tests.waiting import DEADLINE_S

ROLES = ["generator.count=2", "generator.cpus=1", "learner.ranks=2", "learner.replicas=2", "learner.cpus=1"]


async def published_twice(home: Path, address: str) -> dict[str, Any]:
    """Two versions, and a response of each generator under the second."""
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f'cluster.address="{address}"', *ROLES]
    config = load_config([BASE], [*overrides, "run.name=two-nodes", "cluster.placement=colocated"])
    inputs = read_inputs(config)
    assert inputs.train is not None
    offers: list[WeightUpdate] = []
    async with run_actors(config) as actors:
        generators, learners = actors.generators(), actors.learners()
        await actors.started()
        publish = learners.publish

        async def elsewhere(*given: Any, **options: Any) -> WeightUpdate:
            """As if rank 0's file were out of every generator's reach."""
            offers.append(await publish(*given, **options))
            return replace(offers[-1], source=SharedMemoryWeights(home / "nowhere", 0, ""))

        learners.publish = elsewhere  # type: ignore[method-assign]
        weights: WeightPublisher = actors.weights(learners, generators, inputs.train.prompts)
        shared, _, published = actors.ports(generators, learners, weights)
        differences = [await published.publish(version) for version in (0, 1)]
        wanted = [
            Request(f"{prompt.id}/0", prompt.id, prompt.tokens, 0, seed=number)
            for number, prompt in enumerate(inputs.train.prompts)
        ]
        answers = [one async for one in shared.generate(wanted, Sampling(max_tokens=8), deadline_s=300)]
        (group,) = placement_group_table().values()
        return {
            "bundles": list(group["bundles_to_node_id"].values()),
            "files": [{node: str(source.path) for node, source in offer.nodes.items()} for offer in offers],
            "differences": differences,
            "served": {actor.name: actor.version for actor in generators.status().actors},
            "versions": sorted({answer.policy_version for answer in answers}),
        }


def main() -> None:
    """Start both nodes, work, and end them."""
    with tempfile.TemporaryDirectory(prefix="rlep-two-", dir="/tmp") as sessions:
        os.environ["RAY_TMPDIR"] = sessions
        Path(sessions, "ray").mkdir()
        cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            cluster.add_node(num_cpus=1)
            cluster.wait_for_nodes()
            found = asyncio.run(published_twice(Path(sys.argv[1]), cluster.address))
        finally:
            started = psutil.Process().children(recursive=True)
            cluster.shutdown()
            psutil.wait_procs(started, timeout=DEADLINE_S)  # they write into the directory until they end
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
