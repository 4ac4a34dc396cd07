"""A shared file system that is stale or stands still: a file is opened again, or named in one sentence, and none is given up."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rlep.config.training import CheckpointConfig
from rlep.core.errors import CheckpointError, DeadlineExceeded, StaleCheckpoint
from rlep.driver import checkpoint as module
from rlep.driver.checkpoint import STALE_TRIES, Checkpoints, choose_checkpoint
from rlep.driver.run_state import RunState
from tests.unit.driver.driver_fakes import FakeLearner, World
from tests.waiting import gate


async def saved(directory: Path, *steps: int) -> Checkpoints:
    """Checkpoints of these steps."""
    checkpoints = Checkpoints(directory, CheckpointConfig(keep=3), deadline_s=60.0)
    for step in steps:
        await checkpoints.save(FakeLearner(World()), RunState(step, "data", "tok", "pool"), lambda _: None)
        await checkpoints.finished()
    return checkpoints


def stale(monkeypatch: pytest.MonkeyPatch, method: str, name: str, times: int) -> list[Path]:
    """``Path.method`` of files ``name`` of step 2 fails so many times; the list has each failure."""
    real, failed = getattr(Path, method), list[Path]()

    def refused(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name and "step-000002" in str(path) and len(failed) < times:
            failed.append(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, method, refused)
    return failed


READS = [("read_text", "files.json"), ("read_text", "state.json"), ("is_file", "state"), ("open", "state")]


@pytest.mark.parametrize(("method", "name"), READS)
async def test_a_stale_file_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    checkpoints = await saved(tmp_path, 1, 2)
    failed = stale(monkeypatch, method, name, STALE_TRIES - 1)
    found, refused = checkpoints.latest()
    assert found is not None
    assert (found.state.step, refused, len(failed)) == (2, [], STALE_TRIES - 1)


@pytest.mark.parametrize(("method", "name"), READS)
async def test_a_file_that_stays_stale_is_named_and_no_older_checkpoint_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    checkpoints = await saved(tmp_path, 1, 2)
    with monkeypatch.context() as mount:
        stale(mount, method, name, 10**6)
        with pytest.raises(StaleCheckpoint, match=rf"step-000002.*{name}.*Stale file handle|Stale file handle.*{name}"):
            checkpoints.latest()
        with pytest.raises(StaleCheckpoint, match="Stale file handle"):
            choose_checkpoint(tmp_path, None)
    found, refused = checkpoints.latest()
    assert found is not None
    assert (found.state.step, refused) == (2, [])


async def test_a_stale_file_at_the_commit_is_named_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    checkpoints = await saved(tmp_path, 1)
    with monkeypatch.context() as mount:
        mount.setattr(os, "fsync", refused)
        with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*/step-000002: .*Stale file handle"):
            await saved(tmp_path, 2)
    found, _ = checkpoints.latest()
    assert found is not None
    assert found.state.step == 1


async def test_a_commit_that_stands_still_ends_the_wait_and_is_whole_once_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = module._commit
    await saved(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep=3), deadline_s=0.05)
    with gate() as closed:

        def still(*arguments: Any) -> None:
            closed.pass_through()
            commit(*arguments)

        monkeypatch.setattr(module, "_commit", still)
        await checkpoints.save(FakeLearner(World()), RunState(2, "data", "tok", "pool"), lambda _: None)
        await asyncio.to_thread(closed.wait_for_somebody)
        with pytest.raises(DeadlineExceeded, match="not written within 0 s"):
            await checkpoints.finished()
        with pytest.raises(DeadlineExceeded, match="not completed within 0 s"):
            await checkpoints.abandon()
        assert sorted(os.listdir(tmp_path)) == [".part-step-000002", "step-000001"]
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    found, _ = checkpoints.latest()
    assert found is not None
    assert found.state.step == 2
