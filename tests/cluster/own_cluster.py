"""Ray's test cluster for a process of its own, whose sessions go with it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster as RayCluster

from tests.waiting import DEADLINE_S


def run_on_own_cluster(work: Callable[[Path, RayCluster], Awaitable[Any]], **environment: str) -> None:
    """Start a cluster with a head of one CPU, work in the directory that is the first argument, and end the cluster.

    What ``work`` gives is written there, to ``found.json``. ``environment`` is set before Ray starts.
    """

    async def worked(cluster: RayCluster) -> Any:
        return await work(Path(sys.argv[1]), cluster)

    with tempfile.TemporaryDirectory(prefix="rlep-own-", dir="/tmp") as sessions:
        os.environ.update(environment, RAY_TMPDIR=sessions)
        Path(sessions, "ray").mkdir()
        # Without a port of its own the dashboard takes the next free one: two tests may start theirs at once.
        cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "dashboard_port": None})
        try:
            found = asyncio.run(worked(cluster))
        finally:
            started = psutil.Process().children(recursive=True)
            cluster.shutdown()
            psutil.wait_procs(started, timeout=DEADLINE_S)  # they write into the directory until they end
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
