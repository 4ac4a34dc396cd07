"""Checkpoints that appear whole or not at all, and are read only when every file is the one that was written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlep.driver.ports import Learner
from rlep.errors import CheckpointError

_NAME = re.compile(r"step-(\d{6,})")
_STATE, _MANIFEST = "state.json", "files.json"


@dataclass(frozen=True, slots=True)
class RunState:
    """What beside the learner's own state a run needs to go on exactly: order, draws and seeds follow from ``step``."""

    step: int
    """Steps done; the next step is number ``step``."""
    data_digest: str
    tokenizer_digest: str
    pool_digest: str
    """Content of the pool the replays come from; empty with M = 0."""
    used: Mapping[str, int] = field(default_factory=dict)
    """Content id → steps that replayed it; kept only where ``replay.selection`` is ``least-used``."""


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
    """The checkpoints of one run directory: ``step-000010/`` and so on."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory.absolute(), keep
        directory.mkdir(parents=True, exist_ok=True)

    async def save(self, learner: Learner, state: RunState) -> Checkpoint:
        """Write the learner's state and ``state``; afterwards older checkpoints beyond ``keep`` go, and all later ones.

        A later one was passed over as broken when the run went back to an earlier step.
        """
        final = self._directory / f"step-{state.step:06d}"
        part = self._directory / f".part-{final.name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        await learner.save(part)
        await asyncio.to_thread(_commit, part, final, asdict(state))
        kept = [path for path in self._found() if _step(path) <= state.step][: self._keep]
        for path in self._found():
            if path not in kept:
                await asyncio.to_thread(shutil.rmtree, path)
        return Checkpoint(final, state)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, and a sentence on each newer one that was passed over."""
        refused: list[str] = []
        for path in self._found():
            try:
                return read_checkpoint(path), refused
            except CheckpointError as error:
                refused.append(str(error))
        return None, refused

    def _found(self) -> list[Path]:
        return sorted((p for p in self._directory.iterdir() if _NAME.fullmatch(p.name)), key=_step, reverse=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``, every file compared with its digest. Raises ``CheckpointError`` naming what differs."""
    try:
        digests = json.loads((path / _MANIFEST).read_text())
        state = RunState(**json.loads((path / _STATE).read_text()))
        named = list(digests.items())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} is torn: {error}") from None
    for name, digest in named:
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path}: {name} is missing")
        if _digest(file) != digest:
            raise CheckpointError(f"checkpoint {path}: {name} is not what was written")
    return Checkpoint(path, state)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file that is on disk, whole, when this returns; an older one stays until then."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        file.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _commit(part: Path, final: Path, state: Mapping[str, object]) -> None:
    write_json(part / _STATE, state)
    files = sorted(file for file in part.rglob("*") if file.is_file())
    write_json(part / _MANIFEST, {str(file.relative_to(part)): _digest(file) for file in files})
    for path in (*files, *(p for p in part.rglob("*") if p.is_dir()), part):
        _sync(path)
    if final.exists():  # the same step redone after an older checkpoint was restored
        shutil.rmtree(final)
    part.rename(final)
    _sync(final.parent)


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
