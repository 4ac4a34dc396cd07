"""The learner's end of the shared-memory transfer: two weight files, written in turn and kept mapped.

Fresh pages of shared memory cost four times the copy into pages that are there, and a digest of all bytes ten times.
So the files are written in place, and a stamp in the header guards them: it is taken away before the first byte changes
and a new one is set after the last. A reader that finds the published stamp before and after it copied has copied
exactly what was published; it compares each weight's checksum too, for bits that flip in between.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rlep.core.errors import WeightSyncError
from rlep.engines.weights.weight_update import (
    SAFETENSORS_NAMES,
    STAMP_KEY,
    VERSION_KEY,
    SharedMemoryWeights,
    TensorSpec,
    in_order,
)

_LENGTH_BYTES = 8
_ALIGNMENT = 64
_VERSION_DIGITS = 20
_STAMP_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Slot:
    """One file with its mapping and the tensors in it."""

    descriptor: int
    memory: mmap.mmap
    tensors: tuple[Tensor, ...]


class SharedMemoryWriter:
    """Writes policy versions into ``weights-0`` and ``weights-1`` of a directory, which should be in shared memory.

    The version before the present one stays whole while a new one is written, and if that fails. Files can be read by their
    owner only; removing them is the directory's owner's part.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._layout: tuple[TensorSpec, ...] = ()
        self._slots: dict[Path, _Slot] = {}
        self._latest: Path | None = None

    def write(
        self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]], version: int
    ) -> SharedMemoryWeights:
        """Copy ``tensors``, which come in the order of ``layout``, into the older file, in the layout's dtypes.

        Raises:
            WeightSyncError: the tensors are not exactly those of the layout, or there is no room for the file.
        """
        if tuple(layout) != self._layout:
            self.close()
            self._layout = tuple(layout)
        path = self._directory / ("weights-1" if self._latest == self._directory / "weights-0" else "weights-0")
        stamp = secrets.token_hex(_STAMP_BYTES)
        header = _header(self._layout, version, stamp)
        try:
            slot = self._slots.get(path)
            if slot is None or not os.fstat(slot.descriptor).st_nlink:  # new, or removed by somebody
                self._drop(path)
                slot = self._slots[path] = _open_slot(path, self._layout, len(header))
            os.pwrite(slot.descriptor, bytes(len(header)), 0)
            for target, (_, tensor) in zip(slot.tensors, in_order(self._layout, tensors), strict=True):
                target.copy_(tensor.detach())
            os.pwrite(slot.descriptor, header[_LENGTH_BYTES:], _LENGTH_BYTES)
            os.pwrite(slot.descriptor, header[:_LENGTH_BYTES], 0)
        except OSError as error:
            needed = sum(spec.nbytes for spec in layout)
            raise WeightSyncError(
                f"cannot write policy version {version} to {path} ({needed} bytes): {error}"
            ) from error
        self._latest = path
        return SharedMemoryWeights(path, len(slot.memory), stamp)

    def close(self) -> None:
        """Close the files; published weights stay as long as the files do."""
        for path in list(self._slots):
            self._drop(path)

    def _drop(self, path: Path) -> None:
        slot = self._slots.pop(path, None)
        if slot is not None:
            os.close(slot.descriptor)  # the mapping ends with its last tensor


def _open_slot(path: Path, layout: Sequence[TensorSpec], header_bytes: int) -> _Slot:
    """A new file of the layout's size. All its pages are taken now: later, a full file system would be a SIGBUS."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        nbytes = header_bytes + sum(spec.nbytes for spec in layout)
        os.posix_fallocate(descriptor, 0, nbytes)
        memory = mmap.mmap(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        path.unlink()
        raise
    tensors, offset = [], header_bytes
    for spec in layout:
        dtype, count = getattr(torch, spec.dtype), spec.elements
        flat = (
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
        )
        tensors.append(flat.view(spec.shape))
        offset += spec.nbytes
    return _Slot(descriptor, memory, tuple(tensors))


def _header(layout: Sequence[TensorSpec], version: int, stamp: str) -> bytes:
    """The head of a safetensors file; equally long for all versions of a layout."""
    entries: dict[str, object] = {"__metadata__": {VERSION_KEY: f"{version:0{_VERSION_DIGITS}}", STAMP_KEY: stamp}}
    offset = 0
    for spec in layout:
        end = offset + spec.nbytes
        entries[spec.name] = {
            "dtype": SAFETENSORS_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
