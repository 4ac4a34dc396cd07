"""Ray's head process is killed and started again over its Redis while verifiers work; in a process of its own.

It writes to ``found.json`` the verdicts before, without and after it, and those of a verifier that was lost meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from ray.cluster_utils import Cluster as RayCluster

from rlep.actors.verifiers import VerifierPool
from rlep.config.settings import load_config
from rlep.core.types import Completion, Prompt
from rlep.launch.compose import run_actors
from tests.small import BASE, small_task
from tests.waiting import DEADLINE_S

PROMPT = Prompt("ab" * 16, "How many?", "62", np.arange(4, dtype=np.int32))


async def grade(verifiers: VerifierPool) -> list[str]:
    """The verdicts of a right and a wrong answer."""
    tokens, logprobs = np.array([5, 6], np.int32), np.zeros(2, np.float32)
    answers = [
        Completion(f"r/{sample}", PROMPT.id, sample, tokens, logprobs, "stop", 0, rf"\boxed{{{text}}}")
        for sample, text in enumerate(("62", "3"))
    ]
    return [verdict.status for verdict in await verifiers.grade(PROMPT, answers)]


async def graded(home: Path, cluster: RayCluster) -> dict[str, Any]:
    """Verdicts while the head is there, while it is away, and once it is back and a verifier has to be placed."""
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f'cluster.address="{cluster.address}"']
    events: list[str] = []
    config = load_config([BASE], [*overrides, "run.name=head-restarts", "cluster.head_deadline_s=55"])
    async with run_actors(config, lambda event, _actor, _error: events.append(event)) as actors:
        verifiers = actors.verifiers()
        await actors.started()
        found: dict[str, Any] = {"before": await grade(verifiers)}
        handle = await verifiers._replicas.members[0].actor.handle()
        process = await handle.ping.remote()
        cluster.head_node.kill_gcs_server()
        found["without"] = await grade(verifiers)
        cluster.head_node.start_gcs_server()
        os.kill(process, signal.SIGKILL)
        found["after"] = await grade(verifiers)
    return found | {"events": events}


def main() -> None:
    """Start a cluster whose head keeps its state in Redis, work, and end both."""
    with tempfile.TemporaryDirectory(prefix="rlep-head-", dir="/tmp") as sessions:
        os.environ.update(RAY_TMPDIR=sessions, RAY_REDIS_ADDRESS=f"127.0.0.1:{sys.argv[2]}")
        Path(sessions, "ray").mkdir()
        cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            found = asyncio.run(graded(Path(sys.argv[1]), cluster))
        finally:
            started = psutil.Process().children(recursive=True)
            cluster.shutdown()
            psutil.wait_procs(started, timeout=DEADLINE_S)  # they write into the directory until they end
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
