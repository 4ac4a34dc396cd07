"""Checkpoints that appear whole or not at all, and are read only when every file is the one that was written.

Training goes on while one is written: the learner snapshots its state, and a task waits for its files, adds digests, syncs
everything to disk and renames the directory. A crash before the rename leaves the previous checkpoint.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rlep.config.training import CheckpointConfig
from rlep.core.errors import CheckpointError, DeadlineExceeded, StaleCheckpoint
from rlep.core.files import write_json
from rlep.core.waiting import silence
from rlep.driver.ports import Learner
from rlep.driver.run_state import RunState

_NAME = re.compile(r"step-(\d{6,})")
_STATE, _MANIFEST = "state.json", "files.json"
STALE_TRIES = 3
"""A file of a shared file system whose handle is stale is there again once it has been looked up anew."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint: ``model/`` (Hugging Face) and ``trainer/``."""

    path: Path
    state: RunState

    @property
    def model(self) -> Path:
        """Directory that transformers and vLLM load."""
        return self.path / "model"


class Checkpoints:
    """The checkpoints of one run directory: ``step-000010/`` and so on. One is written at a time."""

    def __init__(self, directory: Path, rule: CheckpointConfig, *, deadline_s: float) -> None:
        """``deadline_s``: longest wait for a checkpoint that is being written."""
        self._directory, self._rule, self._deadline = directory.absolute(), rule, deadline_s
        self._writing: asyncio.Task[Checkpoint] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        for left in (*self._directory.glob(".part-step-*"), *self._directory.glob(".old-step-*")):
            shutil.rmtree(left, ignore_errors=True)  # of a run that was killed

    async def save(
        self,
        learner: Learner,
        state: RunState,
        saved: Callable[[Checkpoint], None],
        more: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Begin a checkpoint of the learner's present state; ``saved`` is called when it is complete on disk.

        ``more`` adds files to its directory, now.

        Waits first for the previous one. Afterwards older ones beyond ``keep`` are removed, except the best, and so are
        all later ones: they were found broken when the run was restored from an earlier step.

        Raises:
            CheckpointError: the previous one could not be written.
            DeadlineExceeded: the previous one takes too long.
        """
        await self.finished()
        part = self._directory / f".part-step-{state.step:06d}"
        with _writing(part):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            more(part)
        begun = asyncio.ensure_future(learner.save(part))
        # ``finished`` raises what it raises.
        self._writing = silence(asyncio.create_task(self._write(learner, begun, part, state, saved)))
        await asyncio.shield(begun)  # a learner that was asked goes on, whoever stops waiting for it

    async def finished(self) -> Checkpoint | None:
        """Wait until no checkpoint is being written; returns the last one begun here. Raises as ``save`` does."""
        if self._writing is None:
            return None
        done, _ = await asyncio.wait({self._writing}, timeout=self._deadline)
        if not done:
            raise DeadlineExceeded(f"a checkpoint was not written within {self._deadline:.0f} s")
        return self._writing.result()

    async def abandon(self) -> None:
        """Give up the checkpoint that is being written, unless all its files are written: then complete it.

        Raises ``DeadlineExceeded`` where the file system does not let it be completed.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            done, _ = await asyncio.wait({writing}, timeout=self._deadline)
            if not done:
                raise DeadlineExceeded(f"a checkpoint was not completed within {self._deadline:.0f} s")

    async def _write(
        self,
        learner: Learner,
        begun: asyncio.Future[None],
        part: Path,
        state: RunState,
        saved: Callable[[Checkpoint], None],
    ) -> Checkpoint:
        await begun
        await learner.written()
        committing = asyncio.ensure_future(asyncio.to_thread(self._commit, part, state))
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            await committing  # a thread cannot be stopped, and must not share the directory with the next one
            raise
        checkpoint = committing.result()
        saved(checkpoint)
        return checkpoint

    def _commit(self, part: Path, state: RunState) -> Checkpoint:
        final = self._directory / f"step-{state.step:06d}"
        with _writing(final):
            _commit(part, final, asdict(state))
            found = [path for path in _found(self._directory) if _step(path) <= state.step]
            kept = {*found[: self._rule.keep], _best(found, self._rule.best)}
            for path in _found(self._directory):
                if path not in kept:
                    _remove(path)
        return Checkpoint(final, state)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint, and a sentence on each newer one that was passed over.

        Raises ``StaleCheckpoint`` where it cannot be told whether one is intact.
        """
        refused: list[str] = []
        for path in _found(self._directory):
            try:
                return read_checkpoint(path), refused
            except StaleCheckpoint:
                raise  # an older one would be trained on, and this one removed
            except CheckpointError as error:
                refused.append(str(error))
        return None, refused

    def complete(self, steps: int) -> Checkpoint | None:
        """Return the newest intact checkpoint if it has ``steps`` steps or more, so that nothing is left to do."""
        if not any(_step(path) >= steps for path in _found(self._directory)):
            return None  # without reading any file
        newest, _ = self.latest()
        done = newest is not None and newest.state.step >= steps and not newest.state.unrecorded
        return newest if done else None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a full disk, or a removed directory, into a ``CheckpointError``."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {path}: {error}") from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at ``path``, every file compared with its digest.

    Raises ``CheckpointError`` naming what differs, ``StaleCheckpoint`` naming the file after ``STALE_TRIES`` tries.
    """
    for _ in range(STALE_TRIES - 1):
        with suppress(StaleCheckpoint):
            return _read(path)
    return _read(path)


def _read(path: Path) -> Checkpoint:
    try:
        digests = json.loads((path / _MANIFEST).read_text())
        state = RunState(**json.loads((path / _STATE).read_text()))
        named = list(digests.items())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(f"checkpoint {path} is torn: {error}", error) from None
    if _STATE not in digests:
        raise CheckpointError(f"checkpoint {path} is torn: {_MANIFEST} does not name {_STATE}")
    for name, digest in named:
        file = path / name
        try:
            if not file.is_file():
                raise CheckpointError(f"checkpoint {path}: {name} is missing")
            intact = _digest(file) == digest
        except OSError as error:
            raise _unreadable(f"checkpoint {path}: {name} cannot be read: {error}", error) from None
        if not intact:
            raise CheckpointError(f"checkpoint {path}: {name} is not what was written")
    return Checkpoint(path, state)


def _unreadable(message: str, error: Exception) -> CheckpointError:
    stale = isinstance(error, OSError) and error.errno == errno.ESTALE
    return StaleCheckpoint(message) if stale else CheckpointError(message)


def choose_checkpoint(directory: Path, best: str | None) -> tuple[Checkpoint, str]:
    """Choose the checkpoint with the largest value of metric ``best`` if any has it, else the newest; and say which it is.

    Raises ``CheckpointError`` where none is intact, with a sentence on each; ``StaleCheckpoint`` where that cannot be told.
    """
    found = _found(directory)
    first = _best(found, best)
    refused: list[str] = []
    for path in dict.fromkeys([*([first] if first else []), *found]):
        try:
            return read_checkpoint(path), "best checkpoint" if path == first else "last checkpoint"
        except StaleCheckpoint:
            raise
        except CheckpointError as error:
            refused.append(str(error))
    raise CheckpointError("; ".join([f"{directory} has no intact checkpoint", *refused]))


def _found(directory: Path) -> list[Path]:
    """Return the checkpoints, newest first."""
    return sorted((p for p in directory.iterdir() if _NAME.fullmatch(p.name)), key=_step, reverse=True)


def _best(found: list[Path], metric: str | None) -> Path | None:
    """Return the checkpoint with the largest value of ``metric``, of several the newest."""
    scores = {path: _score(path, metric) for path in found} if metric else {}
    known = [path for path in found if scores.get(path) is not None]
    return max(known, key=lambda path: scores[path] or 0.0, default=None)


def _score(path: Path, metric: str) -> float | None:
    """Return the finite value of ``metric`` that a checkpoint was written with."""
    try:
        state = RunState(**json.loads((path / _STATE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    known = state.metric == metric and state.score is not None and math.isfinite(state.score)
    return state.score if known else None


def _commit(part: Path, final: Path, state: Mapping[str, object]) -> None:
    write_json(part / _STATE, state)
    files = sorted(file for file in part.rglob("*") if file.is_file())
    for name in ("model", "trainer"):
        if not any(file.is_relative_to(part / name) for file in files):
            raise CheckpointError(
                f"checkpoint {final}: the learner left nothing in its {name}/ here; run.directory must be a directory that the "
                "machines of driver and learner share"
            )
    write_json(part / _MANIFEST, {str(file.relative_to(part)): _digest(file) for file in files})
    for path in (*files, *(p for p in part.rglob("*") if p.is_dir()), part):
        _sync(path)
    if final.exists():  # the same step redone after an older checkpoint was restored
        _remove(final)
    part.rename(final)
    _sync(final.parent)


def _remove(path: Path) -> None:
    """Remove a checkpoint; killed in the middle it leaves nothing that is taken for one."""
    old = path.with_name(f".old-{path.name}-{secrets.token_hex(4)}")
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)  # what stays, as another process has it open, goes at the next start


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
