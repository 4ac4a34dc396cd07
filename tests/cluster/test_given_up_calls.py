"""A call that is given up, as by Ctrl-C in an update, ends without words of Ray's; those of others go to the log."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from rlep.actors.cluster import SENT_AGAIN, Cluster
from rlep.actors.supervised import watch_call
from rlep.config.roles import ClusterConfig
from tests.waiting import until


class Busy:
    """Never finishes what it is asked."""

    def update(self, begun: Path) -> None:
        begun.touch()
        time.sleep(3600)

    def forward(self, begun: Path) -> None:
        self.update(begun)

    def ping(self) -> None:
        """Answers meanwhile."""


def busy() -> Any:
    """With the options that Ray repeats lost calls by."""
    kind = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=SENT_AGAIN, max_concurrency=2)(Busy)
    return kind.remote()


@pytest.mark.asyncio
async def test_only_a_call_that_nobody_gave_up_is_announced_as_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rlep.actors.ray_private")

    def announced() -> bool:
        return any("Busy.forward" in line for line in caplog.messages)

    cluster = Cluster(ClusterConfig(cpus=1), "given-up")
    await asyncio.to_thread(cluster.connect)
    try:
        given_up, kept = busy(), busy()
        update = given_up.update.remote(tmp_path / "update")
        call = asyncio.create_task(
            watch_call(given_up, update, "busy-0", "update", deadline_s=3600, heartbeat_timeout_s=3600)
        )
        forward = kept.forward.remote(tmp_path / "forward")
        await until(lambda: (tmp_path / "update").exists() and (tmp_path / "forward").exists(), "both calls to begin")
        call.cancel()
        await asyncio.wait({call})
        ray.kill(given_up)
        ray.kill(kept)
        await until(announced, "Ray to announce the call that nobody gave up")  # what it says of the other came before
        del forward
    finally:
        await asyncio.to_thread(cluster.close)
    assert not [line for line in caplog.messages if "Busy.update" in line]
    assert "Busy" not in capsys.readouterr().out  # a step's JSON is on standard output
