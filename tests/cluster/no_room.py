"""A joined cluster of one CPU, and verifiers that it has no room for: a process of its own, started by ``test_no_room``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster as RayCluster

from rlep.actors.cluster import Cluster
from rlep.actors.verifiers import VerifierPool
from rlep.config.roles import ClusterConfig, VerifierConfig
from rlep.core.errors import PlacementError
from tests.cluster.own_cluster import run_on_own_cluster
from tests.waiting import until


async def scaled(_: Path, ray_cluster: RayCluster) -> dict[str, Any]:
    """What is said while the second verifier waits for a place, and in the end; who is left."""
    cluster = Cluster(ClusterConfig(address=ray_cluster.address, place_deadline_s=3), "no-room")
    await asyncio.to_thread(cluster.connect)
    pool = VerifierPool(cluster, VerifierConfig(count=1, cpus=1))
    try:
        await pool.start()
        begun = time.monotonic()
        scaling = asyncio.ensure_future(pool.scale(2, 0))
        await until(lambda: any(one.state == "placing" for one in pool.status().actors), "the second verifier")
        (waiting,) = [one.error for one in pool.status().actors if one.state == "placing"]
        try:
            await scaling
        except PlacementError as error:
            ended = str(error)
        waited = time.monotonic() - begun
        return {
            "waiting": waiting,
            "ended": ended,
            "waited": waited,
            "left": [one.name for one in pool.status().actors],
        }
    finally:
        await pool.close()
        await asyncio.to_thread(cluster.close)


if __name__ == "__main__":
    run_on_own_cluster(scaled)
