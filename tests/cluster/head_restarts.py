"""Ray's head process is killed and started again over its Redis while verifiers work; in a process of its own.

It writes to ``found.json`` the verdicts before, without and after it, and those of a verifier that was lost meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster as RayCluster

from rlep.actors.verifiers import VerifierPool
from rlep.config.settings import load_config
from rlep.core.types import Completion, Prompt
from rlep.launch.roles import run_actors
from tests.cluster.own_cluster import run_on_own_cluster
from tests.small import BASE, small_task

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


if __name__ == "__main__":
    run_on_own_cluster(graded, RAY_REDIS_ADDRESS=f"127.0.0.1:{sys.argv[2]}")
