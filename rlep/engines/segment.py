"""What a learner publishes and a generator loads: weights, their layout, and probes to check them by.

A segment is a file in the safetensors format, usually in shared memory, that appears whole or not at all. This module
needs neither vLLM nor torch to be imported, so that both sides of a transfer can use it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from rlep.errors import ModelError, WeightSyncError
from rlep.types import Float32Array, Int32Array

if TYPE_CHECKING:
    import torch

Backend = Literal["segment", "nccl", "ipc"]

_SAFETENSORS_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float64": "F64",
}
_DTYPES = {short: name for name, short in _SAFETENSORS_NAMES.items()}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
_VERSION_KEY = "policy_version"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name (as in the Hugging Face checkpoint), dtype (torch's name, e.g. ``bfloat16``) and full shape of one weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        size = _ITEM_BYTES[self.dtype]
        for axis in self.shape:
            size *= axis
        return size


@dataclass(frozen=True, slots=True)
class Segment:
    """Weights in a file on this machine: the ``segment`` backend."""

    path: Path
    nbytes: int
    """Size of the whole file; a torn file is refused."""
    digest: str
    """blake2b-128 of the whole file, hex."""


@dataclass(frozen=True, slots=True)
class NcclGroup:
    """Weights broadcast by learner rank 0 to the vLLM workers: the ``nccl`` backend. Fields as in vLLM's init info."""

    master_address: str
    master_port: int
    rank_offset: int
    """NCCL rank of this generator's first worker; the learner is rank 0."""
    world_size: int
    """Learner rank 0 and every worker of every generator."""


@dataclass(frozen=True, slots=True)
class IpcHandles:
    """Weights of a learner on the same GPUs, opened by CUDA IPC: the ``ipc`` backend."""

    handles: tuple[dict[str, tuple[object, ...]], ...]
    """One per tensor of the layout: GPU uuid to the arguments of torch's ``rebuild_cuda_tensor``."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A fixed sequence and the learner's log-probs of its response under the published weights."""

    prompt: Int32Array
    """``[prompt_length]``"""
    response: Int32Array
    """``[T]``"""
    logprobs: Float32Array
    """Raw log-probs at temperature 1, ``[T]``."""


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """One policy version as a learner hands it to the generators."""

    version: int
    layout: tuple[TensorSpec, ...]
    """Every weight of the model, in the order the source holds or sends them."""
    source: Segment | NcclGroup | IpcHandles
    probes: tuple[Probe, ...]
    """At least one: a generator serves this version only after its own log-probs of them agree."""
    tolerance: float
    """Largest allowed absolute log-prob difference, e.g. 1e-4 in float32."""


def write_segment(
    path: Path,
    layout: Sequence[TensorSpec],
    tensors: Iterable[tuple[str, torch.Tensor]],
    version: int,
) -> Segment:
    """Write ``tensors``, which come in the order of ``layout``, one at a time; the file appears at ``path`` when complete.

    The file is readable by its owner only. At most one tensor is in memory at a time beside the file itself.

    Raises:
        WeightSyncError: the tensors are not exactly those of the layout, or there is no room for the file.
    """
    part = path.with_name(path.name + ".part")
    digest = hashlib.blake2b(digest_size=16)
    try:
        part.unlink(missing_ok=True)
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
            "wb",
            buffering=0,
        ) as file:
            for piece in _pieces(layout, tensors, version):
                digest.update(piece)
                _write_all(file.fileno(), piece)
            nbytes = file.tell()
        os.replace(part, path)
    except OSError as error:
        needed = sum(spec.nbytes for spec in layout)
        raise WeightSyncError(f"cannot write policy version {version} to {path} ({needed} bytes): {error}") from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return Segment(path, nbytes, digest.hexdigest())


def read_layout(path: Path) -> tuple[dict[str, TensorSpec], int | None]:
    """The weights a safetensors file holds, by name, and the policy version in its header (None in a plain checkpoint).

    Raises:
        WeightSyncError: the file is missing, torn, or holds another dtype than a float.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            specs = {
                name: TensorSpec(name, _DTYPES[part.get_dtype()], tuple(part.get_shape()))
                for name, part in slices.items()
            }
            version = (file.metadata() or {}).get(_VERSION_KEY)
    except (SafetensorError, OSError, KeyError) as error:
        raise WeightSyncError(f"cannot read weights from {path}: {error!r}") from error
    return specs, None if version is None else int(version)


def check_segment(segment: Segment, version: int) -> tuple[TensorSpec, ...]:
    """The weights of a segment, after it was found to be the file that was written, of this policy version.

    Raises:
        WeightSyncError: missing, another size, digest or version.
    """
    try:
        nbytes = segment.path.stat().st_size
        with segment.path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise WeightSyncError(f"cannot read weight segment {segment.path}: {error}") from error
    if (nbytes, digest) != (segment.nbytes, segment.digest):
        raise WeightSyncError(
            f"weight segment {segment.path} has {nbytes} bytes, digest {digest}; "
            f"published were {segment.nbytes} bytes, digest {segment.digest}"
        )
    specs, written = read_layout(segment.path)
    if written != version:
        raise WeightSyncError(f"weight segment {segment.path} holds policy version {written}, not {version}")
    return tuple(specs.values())


def checkpoint_layout(model: Path) -> dict[str, TensorSpec]:
    """The full set of weights of a Hugging Face model directory, by name, from its safetensors headers.

    Raises:
        ModelError: no safetensors, or unreadable ones.
    """
    index = model / "model.safetensors.index.json"
    files = ["model.safetensors"]
    try:
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        layouts = [read_layout(model / file)[0] for file in files]
    except (WeightSyncError, OSError, ValueError, KeyError) as error:
        raise ModelError(f"{model} has no usable safetensors weights: {error}") from error
    return {name: spec for layout in layouts for name, spec in layout.items()}


def check_layout(expected: Iterable[TensorSpec], offered: Iterable[TensorSpec]) -> None:
    """Refuse a set of weights that is not the model's full set: vLLM itself accepts a partial one.

    Raises:
        WeightSyncError: names the missing and unexpected weights and those of another shape.
    """
    wanted = {spec.name: spec.shape for spec in expected}
    given = {spec.name: spec.shape for spec in offered}
    reshaped = [
        f"{name} {given[name]} not {wanted[name]}"
        for name in sorted(wanted.keys() & given.keys())
        if wanted[name] != given[name]
    ]
    problems = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "of another shape": reshaped,
    }
    found = [f"{len(names)} {kind}: {_first(names)}" for kind, names in problems.items() if names]
    if found:
        raise WeightSyncError(f"{len(given)} weights offered, {len(wanted)} expected; " + "; ".join(found))


def _first(names: list[str], count: int = 8) -> str:
    return ", ".join(names[:count]) + (" …" if len(names) > count else "")


def _pieces(
    layout: Sequence[TensorSpec],
    tensors: Iterable[tuple[str, torch.Tensor]],
    version: int,
) -> Iterator[bytes | memoryview]:
    import torch

    yield _header(layout, version)
    stream = iter(tensors)
    for spec in layout:
        name, tensor = next(stream, (None, None))
        offered = tensor is not None and (
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
        )
        if tensor is None or offered != (spec.name, spec.dtype, spec.shape):
            raise WeightSyncError(f"the layout's next weight is {spec}, offered was {offered or 'nothing'}")
        flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        yield flat.numpy().data
    extra = next(stream, None)
    if extra is not None:
        raise WeightSyncError(f"{extra[0]} was offered after all {len(layout)} weights of the layout")


def _header(layout: Sequence[TensorSpec], version: int) -> bytes:
    entries: dict[str, object] = {"__metadata__": {_VERSION_KEY: str(version)}}
    offset = 0
    for spec in layout:
        end = offset + spec.nbytes
        entries[spec.name] = {
            "dtype": _SAFETENSORS_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


def update_info(publication: Publication) -> dict[str, Any]:
    """What vLLM's weight transfer engine of this backend is told about a publication."""
    source = publication.source
    if isinstance(source, Segment):
        return {"path": str(source.path), "version": publication.version}
    tensors: dict[str, Any] = {
        "names": [spec.name for spec in publication.layout],
        "dtype_names": [spec.dtype for spec in publication.layout],
        "shapes": [list(spec.shape) for spec in publication.layout],
    }
    if isinstance(source, IpcHandles):
        tensors["ipc_handles"] = list(source.handles)
    return tensors
