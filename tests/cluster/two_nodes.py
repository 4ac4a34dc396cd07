"""A colocated learner and its generators and pools, on Ray's test cluster of two nodes.

In a process of its own, whose token Ray reads once.

It writes to ``found.json`` the nodes of the bundles and of the pools, the weights that each node had, and what was served.
The model is one of a hub, which the test runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util import placement_group_table

from rlep.actors.cluster import Cluster
from rlep.actors.pool_actor import PoolHost
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Subject
from rlep.config.settings import load_config
from rlep.core.types import Request, Sampling
from rlep.engines.weights.weight_update import SharedMemoryWeights, WeightUpdate
from rlep.hub.resolve import resolve
from rlep.launch.roles import run_actors
from rlep.services.pool.values import PoolPlace
from tests.cluster.own_cluster import run_on_own_cluster
from tests.small import BASE, small_task

ROLES = ["generator.count=2", "generator.cpus=1", "learner.ranks=2", "learner.replicas=2", "learner.cpus=1"]


async def node_of_pool(cluster: Cluster, home: Path, number: int) -> str:
    """The node of one more pool's actor: Ray places actors without CPUs on any."""
    name = f"pool-{number}"
    pool = PoolHost(cluster, PoolPlace(None, home / name, name), 30.0, name)
    await pool.start()
    actor = ray.get_actor(name, namespace=cluster.namespace)
    node = str(await actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    await pool.close()
    return node


async def published_twice(home: Path, address: str) -> dict[str, Any]:
    """Two versions, and a response of each generator under the second."""
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f'cluster.address="{address}"', *ROLES]
    named = [*overrides, "run.name=two-nodes", "cluster.placement=colocated", "model.path=org/tiny"]
    config = resolve(load_config([BASE], named), lambda _: None)
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    offers: list[WeightUpdate] = []
    async with run_actors(config) as actors:
        generators, learners = actors.generators(), actors.learners()
        await actors.started()
        driver = ray.get_runtime_context().get_node_id()
        pools = [await node_of_pool(actors.cluster, home, number) for number in range(6)]
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
            "driver": driver,
            "pools": pools,
            "bundles": list(group["bundles_to_node_id"].values()),
            "files": [{node: str(source.path) for node, source in offer.nodes.items()} for offer in offers],
            "differences": differences,
            "served": {actor.name: actor.version for actor in generators.status().actors},
            "versions": sorted({answer.policy_version for answer in answers}),
        }


async def on_both(home: Path, cluster: RayCluster) -> dict[str, Any]:
    """With a second node, which has a cache of the hub of its own."""
    cluster.add_node(num_cpus=1, env_vars={"HF_HOME": str(home / "second")})
    cluster.wait_for_nodes()
    return await published_twice(home, cluster.address)


if __name__ == "__main__":
    run_on_own_cluster(on_both)
