"""Nodes are lost, drained and added under a run on Ray's test cluster; in a process of its own, whose token Ray reads once.

It writes to ``found.json`` what was answered, where the actors were, and what the learner said.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private.worker import global_worker
from ray.cluster_utils import Cluster as RayCluster

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Subject
from rlep.config.roles import ClusterConfig
from rlep.config.settings import load_config
from rlep.core.errors import LearnerLost, PlacementError
from rlep.core.types import Completion, Prompt, Request, Sampling
from rlep.engines.learner.weight_sender import probe_batch
from rlep.launch.roles import RunActors, run_actors
from tests.cluster.own_cluster import run_on_own_cluster
from tests.small import BASE, small_task
from tests.waiting import DEADLINE_S, until

GENERATES, LEARNS = {"rlep-role": "generator"}, {"rlep-role": "learner"}
SAMPLES = 8
"""G: requests per prompt."""
PREEMPTED = 2
"""Ray's number for the reason of a drain that a provider of machines gives notice of."""
NOTICE_S = 2.0
"""Between the notice and the end of the node."""
NOT_FOR_LONG = ClusterConfig(place_deadline_s=5)
"""The configuration while no node has room, which costs the test the whole wait."""
ROLES = [
    *("generator.count=1", "generator.cpus=0.5", "generator.label_selector.rlep-role=generator"),
    *("learner.ranks=2", "learner.cpus=1", "learner.label_selector.rlep-role=learner"),
    *("cluster.place_deadline_s=60", "generator.heartbeat_timeout_s=15", "learner.heartbeat_timeout_s=15"),
]


@dataclass
class Scene:
    """What the faults share."""

    cluster: RayCluster
    home: Path
    actors: RunActors
    generators: GeneratorPool
    learners: Learners
    weights: WeightPublisher
    prompts: tuple[Prompt, ...]

    def add(self, labels: dict[str, str], address: str = "127.0.0.1") -> Any:
        """One more node for a role, at ``address``; Ray starts one in the main thread only."""
        return self.cluster.add_node(num_cpus=1, labels=labels, node_ip_address=address)

    async def rollout(self, label: str, fault: Callable[[], Awaitable[object]]) -> dict[str, Any]:
        """G answers to every prompt; ``fault`` happens at the 20th of them."""
        wanted = [
            Request(f"{label}/{prompt.id}/{sample}", prompt.id, prompt.tokens, sample, seed=sample)
            for prompt in self.prompts
            for sample in range(SAMPLES)
        ]
        before, arrived = await self.place_of_generator(), list[Completion]()
        async for one in self.generators.generate(wanted, Sampling(max_tokens=48), deadline_s=DEADLINE_S):
            arrived.append(one)
            if len(arrived) == 20:
                await fault()
        after = await self.place_of_generator()
        return {
            "wanted": [request.id for request in wanted],
            "arrived": [one.request_id for one in arrived],
            "versions": sorted({one.policy_version for one in arrived}),
            "before": before,
            "after": after,
            "retried": self.generators.reissued.retried,
        }

    async def place_of_generator(self) -> list[str]:
        """Ray's id and the address of the node that the generator is on."""
        (replica,) = self.generators.replicas
        await until(lambda: replica.actor.living is not None, "the generator")
        return list(await (await replica.actor.handle()).__ray_call__.remote(place))


def place(_actor: object) -> tuple[str, str]:
    """The node that runs this: its id in Ray and its address."""
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


async def lost_generator(scene: Scene, first: Any) -> dict[str, Any]:
    """The generator's node is lost in a rollout, and one comes back under another address."""

    async def fault() -> None:
        first.kill_raylet()
        scene.add(GENERATES, "127.0.0.2")

    return await scene.rollout("lost", fault)


async def drained_generator(scene: Scene) -> dict[str, Any]:
    """The node that came back is about to end: another is there before it does, and takes the work."""

    async def fault() -> None:
        leaving = next(one for one in ray.nodes() if one["NodeManagerAddress"] == "127.0.0.2" and one["Alive"])
        due = int(1000 * (time.time() + NOTICE_S))
        accepted, why = global_worker.gcs_client.drain_node(leaving["NodeID"], PREEMPTED, "spot", due)
        assert accepted, why
        scene.add(GENERATES)
        node = next(one for one in scene.cluster.worker_nodes if one.node_id == leaving["NodeID"])
        node.kill_raylet()

    return await scene.rollout("drained", fault)


async def lost_rank(scene: Scene) -> dict[str, Any]:
    """A rank's node is lost: without another one the learner is not placed, with one it goes on from its checkpoint."""
    learners, said = scene.learners, list[str]()
    batch = probe_batch([(np.arange(4, dtype=np.int32), np.arange(7, dtype=np.int32))] * 4)
    saved = scene.home / "saved"
    saved.mkdir()
    await learners.save(saved)
    await learners.written()
    scored = await learners.score(batch)
    lost = next(one for one in scene.cluster.worker_nodes if one.node_id == learners._nodes[1])
    lost.kill_raylet()
    try:
        await learners.score(batch)
    except LearnerLost as error:
        said.append(str(error))
    config, scene.actors.cluster.config = scene.actors.cluster.config, NOT_FOR_LONG
    try:
        await learners.restart()
    except PlacementError as error:
        said.append(str(error))
    scene.actors.cluster.config = config
    scene.add(LEARNS)
    await learners.restart()
    await learners.load(saved)
    again = await learners.score(batch)
    return {
        "said": said,
        "lost": lost.node_id,
        "nodes": learners._nodes,
        "equal": scored.tobytes() == again.tobytes(),
        "restarts": learners.status().actors[1].restarts,
        "difference": await scene.weights.publish(1),
    }


async def faults(home: Path, cluster: RayCluster) -> dict[str, Any]:
    """All of them, one after another."""
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f'cluster.address="{cluster.address}"', *ROLES]
    config = load_config([BASE], [*overrides, "run.name=lost-nodes"])
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    events: list[tuple[str, str]] = []
    async with run_actors(config, lambda event, actor, error: events.append((event, actor))) as actors:
        generators, learners = actors.generators(), actors.learners()
        prompts = inputs.train.prompts
        weights = actors.weights(learners, generators, prompts)
        scene = Scene(cluster, home, actors, generators, learners, weights, prompts)
        for _ in range(2):
            scene.add(LEARNS)
        first = scene.add(GENERATES)
        await actors.started()
        await scene.weights.publish(0)
        return {
            "lost": await lost_generator(scene, first),
            "drained": await drained_generator(scene),
            "learner": await lost_rank(scene),
            "events": events,
        }


if __name__ == "__main__":
    # A second address of this machine is a second node's; its processes' groups listen on the same interface.
    run_on_own_cluster(faults, GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="=lo")
