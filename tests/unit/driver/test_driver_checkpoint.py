"""Checkpoints while training goes on: one at a time, whole or not at all, the last K and the best."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlep.config.training import CheckpointConfig
from rlep.core.errors import CheckpointError, DeadlineExceeded
from rlep.driver import checkpoint as module
from rlep.driver.checkpoint import Checkpoint, Checkpoints, read_checkpoint
from rlep.driver.run_state import RunState
from tests.unit.driver.driver_fakes import FakeLearner, Killed, World


@dataclass(eq=False)
class SlowLearner(FakeLearner):
    """Writes its files when it is told to."""

    may_write: asyncio.Event = field(default_factory=asyncio.Event)

    async def written(self) -> None:
        await self.may_write.wait()
        await super().written()


class Scene:
    """A directory, a learner, and what was said to be saved."""

    def __init__(self, directory: Path, *, keep: int = 2, best: str | None = None, deadline_s: float = 60.0) -> None:
        self.directory = directory
        self.checkpoints = Checkpoints(directory, CheckpointConfig(keep=keep, best=best), deadline_s=deadline_s)
        self.learner = SlowLearner(World())
        self.saved: list[int] = []
        self.best = best or ""

    async def save(self, step: int, score: float | None = None) -> None:
        """Begin the checkpoint of a step."""
        self.learner.state = f"state {step}".encode()
        state = RunState(step, "data", "tok", "pool", self.best, score)
        await self.checkpoints.save(self.learner, state, self.on_saved)

    def on_saved(self, checkpoint: Checkpoint) -> None:
        read_checkpoint(checkpoint.path)
        self.saved.append(checkpoint.state.step)

    async def save_all(self, scores: dict[int, float | None]) -> list[int]:
        """Save one after the other; the steps on disk."""
        self.learner.may_write.set()
        for step, score in scores.items():
            await self.save(step, score)
        await self.checkpoints.finished()
        return self.on_disk()

    def on_disk(self) -> list[int]:
        return sorted(int(path.name[-6:]) for path in self.directory.glob("step-*"))


async def test_the_state_of_the_save_is_written_while_the_learner_trains_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.save(1)
    scene.learner.state = b"trained on"
    assert (scene.on_disk(), scene.saved) == ([], [])
    scene.learner.may_write.set()
    checkpoint = await scene.checkpoints.finished()
    assert checkpoint is not None
    assert (checkpoint.model / "state").read_bytes() == b"state 1"
    assert (scene.on_disk(), scene.saved) == ([1], [1])


async def test_a_second_save_begins_only_when_the_first_is_complete(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.save(1)
    second = asyncio.create_task(scene.save(2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert scene.learner.world.count("save") == 1
    scene.learner.may_write.set()
    await second
    assert scene.saved == [1]
    await scene.checkpoints.finished()
    assert scene.saved == [1, 2]


async def test_a_failed_write_is_raised_by_the_next_save_and_leaves_the_one_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.save_all({1: None})
    await scene.save(2)
    (tmp_path / ".part-step-000002" / "trainer").mkdir(exist_ok=True)  # stands in the way of the learner's own
    with pytest.raises(FileExistsError):
        await scene.save(3)
    assert scene.checkpoints.latest()[0] == Checkpoint(tmp_path / "step-000001", RunState(1, "data", "tok", "pool"))


async def test_killed_while_an_old_one_is_removed_it_leaves_whole_ones_and_the_next_process_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_half_way(path: Path, *_: object, **__: object) -> None:
        if path.exists():
            (path / "files.json").unlink()
            raise Killed

    scene = Scene(tmp_path, keep=1)
    await scene.save_all({1: None})
    await scene.save(2)
    with monkeypatch.context() as process:
        process.setattr(shutil, "rmtree", killed_half_way)
        with pytest.raises(Killed):
            await scene.checkpoints.finished()
    assert scene.on_disk() == [2]
    read_checkpoint(tmp_path / "step-000002")
    (tmp_path / ".part-step-000009").mkdir()  # another was killed while it wrote one
    Scene(tmp_path)
    assert os.listdir(tmp_path) == ["step-000002"]


async def test_an_old_one_that_is_held_open_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def busy(path: Path, ignore_errors: bool = False) -> None:
        if path.name.startswith(".old-") and path.exists():  # NFS keeps what a process has open
            if not ignore_errors:
                raise OSError(errno.ENOTEMPTY, "Directory not empty")
            return
        remove(path, ignore_errors=ignore_errors)

    scene = Scene(tmp_path, keep=1)
    monkeypatch.setattr(shutil, "rmtree", busy)
    await scene.save_all({1: None, 2: None, 3: None})
    assert (await scene.checkpoints.finished()) == Checkpoint(
        tmp_path / "step-000003", RunState(3, "data", "tok", "pool")
    )
    assert scene.on_disk() == [3]


async def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkpoints")
    await scene.save_all({1: None})
    scene.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(
        CheckpointError, match=r"cannot write checkpoint .*/checkpoints/\.part-step-000002: .*No such file"
    ):
        await scene.save(2)


async def test_the_wait_for_a_write_has_an_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path, deadline_s=0.01)
    await scene.save(1)
    with pytest.raises(DeadlineExceeded, match="not written within 0 s"):
        await scene.checkpoints.finished()
    await scene.checkpoints.abandon()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_abandoned_write_leaves_the_checkpoint_before_and_does_not_disturb_the_next(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.save_all({1: None})
    scene.learner.may_write.clear()
    await scene.save(2)
    await scene.checkpoints.abandon()
    assert await scene.checkpoints.finished() is None
    assert scene.on_disk() == [1]
    assert await scene.save_all({2: None}) == [1, 2]


async def test_files_that_are_complete_are_committed_though_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, loop, committing = Scene(tmp_path), asyncio.get_running_loop(), asyncio.Event()
    commit = module._commit

    def told(*arguments: object) -> None:
        loop.call_soon_threadsafe(committing.set)
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_commit", told)
    scene.learner.may_write.set()
    await scene.save(1)
    await committing.wait()
    await scene.checkpoints.abandon()
    assert scene.on_disk() == [1]
    assert scene.checkpoints.latest()[1] == []


async def test_the_best_is_kept_beside_the_last(tmp_path: Path) -> None:
    scene = Scene(tmp_path, keep=2, best="rollout/accuracy")
    scores = {1: 0.2, 2: 0.9, 3: 0.4, 4: None, 5: 0.9, 6: float("nan"), 7: 0.1, 8: 0.3}
    assert await scene.save_all(dict(list(scores.items())[:4])) == [2, 3, 4]
    assert await scene.save_all(dict(list(scores.items())[4:])) == [5, 7, 8]  # of equals the newest


async def test_values_of_another_metric_are_no_match(tmp_path: Path) -> None:
    await Scene(tmp_path, best="rollout/reward").save_all({1: 5.0})
    scene = Scene(tmp_path, keep=1, best="rollout/accuracy")
    assert await scene.save_all({2: 0.5, 3: 0.1}) == [2, 3]


async def test_without_a_metric_only_the_last_are_kept(tmp_path: Path) -> None:
    assert await Scene(tmp_path, keep=1).save_all({1: 0.9, 2: 0.1}) == [2]


async def test_a_checkpoint_with_an_empty_manifest_or_an_unreadable_file_is_passed_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path, keep=3)
    assert await scene.save_all({1: None, 2: None, 3: None}) == [1, 2, 3]
    (tmp_path / "step-000003" / "files.json").write_text("{}\n")
    unreadable = tmp_path / "step-000002" / "model" / "state"
    unreadable.unlink()
    unreadable.symlink_to("/proc/self/mem")  # reading its beginning is an input/output error
    found, refused = scene.checkpoints.latest()
    assert found is not None
    assert found.state.step == 1
    assert [message.split(": ", 1)[1] for message in refused] == [
        "files.json does not name state.json",
        "model/state cannot be read: [Errno 5] Input/output error",
    ]


@pytest.mark.parametrize("missing", ["model", "trainer"])
async def test_a_checkpoint_that_the_learner_wrote_elsewhere_is_none(tmp_path: Path, missing: str) -> None:
    scene = Scene(tmp_path)
    await scene.save_all({1: None, 2: None})
    write = scene.learner.written

    async def written() -> None:
        await write()
        shutil.rmtree(tmp_path / ".part-step-000003" / missing)

    scene.learner.written = written  # type: ignore[method-assign]
    await scene.save(3)
    with pytest.raises(CheckpointError) as refused:
        await scene.checkpoints.finished()
    assert str(refused.value) == (
        f"checkpoint {tmp_path}/step-000003: the learner left nothing in its {missing}/ here; run.directory must be a directory "
        "that the machines of driver and learner share"
    )
    assert scene.on_disk() == [1, 2]
