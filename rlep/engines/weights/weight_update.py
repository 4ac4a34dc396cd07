"""A weight update, which a learner publishes and a generator loads: place of the weights, their layout, and probes of them.

Weights in shared memory are a file in the safetensors format, which is complete exactly while its header carries the published
stamp. This module needs neither vLLM nor torch to be imported, so that both sides of a transfer can use it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from rlep.core.errors import ConfigError, ModelError, WeightSyncError
from rlep.core.types import Float32Array, Int32Array

if TYPE_CHECKING:
    import torch

GroupBackend = Literal["gloo", "nccl"]
WeightDtype = Literal["float32", "bfloat16", "float16"]

NCCL_BUFFER_BYTES = 256 * 2**20
"""Size of vLLM's buffers for packed weights; learner rank 0 and each worker hold two beside all else. Its default is 1 GiB."""

LOGPROB_TOLERANCE = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.1}
"""Mean log-prob difference (nats) between learner and generator that rounding explains, by the generator's dtype.

Healthy pairs in bfloat16 show 0.01 to 0.03, a random model's probes on an H200 0.022 to 0.032. Stale weights are seen by
their checksums; this sees what is computed otherwise from the right ones: positions, masks, dtypes, settings of the model.
"""

MODULUS = 2**40
"""Checksums are sums modulo this, so that int64 holds those of any number of shards."""

SAFETENSORS_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float64": "F64",
}
_DTYPES = {short: name for name, short in SAFETENSORS_NAMES.items()}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
VERSION_KEY, STAMP_KEY = "policy_version", "stamp"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name (as in the Hugging Face checkpoint), dtype (torch's name, e.g. ``bfloat16``) and full shape of one weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Count of the numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return self.elements * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class SharedMemoryWeights:
    """Weights in a file on this machine, usually in shared memory: the ``shared_memory`` backend."""

    path: Path
    nbytes: int
    """Size of the whole file; a torn file is refused."""
    stamp: str
    """Random name of this one writing, hex; it stands in the header only while the file holds exactly what was written."""


@dataclass(frozen=True, slots=True)
class BroadcastGroup:
    """Weights that learner rank 0 broadcasts to the workers of all generators: the ``gloo`` and ``nccl`` backends."""

    backend: GroupBackend
    host: str
    port: int
    """Port on ``host`` at which the members meet."""
    token: str
    """Random name of this group; who does not know it cannot join."""
    first_rank: int
    """Rank of this generator's first worker; the learner is rank 0."""
    world_size: int
    """Learner rank 0 and every worker of every generator."""
    deadline_s: float
    """Longest wait for the others, and longest transfer."""


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
class WeightUpdate:
    """One policy version as a learner hands it to the generators."""

    version: int
    layout: tuple[TensorSpec, ...]
    """Every weight of the model, in the order the source holds or sends them."""
    source: SharedMemoryWeights | BroadcastGroup
    """Of learner rank 0."""
    probes: tuple[Probe, ...]
    """At least one: a generator serves this version only after its own log-probs of them agree."""
    tolerance: float
    """Allowed absolute log-prob difference (nats), on average over the probes' tokens, e.g. 1e-4 in float32."""
    checksums: tuple[int, ...]
    """Of each weight of the layout, by ``engines.weights.checksums``."""
    nodes: Mapping[str, SharedMemoryWeights] = field(default_factory=dict)
    """The same weights on each node that has them in its own shared memory, by Ray's id of the node."""

    def on_node(self, node: str) -> WeightUpdate:
        """As a generator on this node takes it.

        Raises ``ConfigError`` where the weights are in the shared memory of other nodes.
        """
        source = self.nodes.get(node, self.source)
        elsewhere = isinstance(source, SharedMemoryWeights) and not source.path.parent.is_dir()
        if elsewhere and self.nodes and node not in self.nodes:
            raise ConfigError(
                'generator.transfer = "shared_memory": this generator is on another node than the learner; set '
                'generator.transfer = "nccl" or "gloo", or have one node for both by label_selector of generator and learner'
            )
        return replace(self, source=source, nodes={})

    @property
    def named_checksums(self) -> dict[str, int]:
        """Checksums by the names of the layout."""
        return {spec.name: checksum for spec, checksum in zip(self.layout, self.checksums, strict=True)}

    def logprob_difference(self, scores: Sequence[Float32Array]) -> float:
        """Mean absolute difference of a generator's log-probs of the probes, ``[T]`` each, to the learner's.

        Raises:
            WeightSyncError: rounding does not explain it.
        """
        differences = np.abs(np.concatenate(scores) - np.concatenate([probe.logprobs for probe in self.probes]))
        mean = float(differences.mean())
        if not mean <= self.tolerance:
            raise WeightSyncError(
                f"policy version {self.version}: log-probs differ from the learner's by {mean:.3g} nats on average "
                f"({float(differences.max()):.3g} at most); rounding explains {self.tolerance:.3g}"
            )
        return mean


def read_layout(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """The weights a safetensors file holds, by name, and the metadata in its header.

    Raises:
        WeightSyncError: the file is missing, being written, torn, or holds another dtype than a float.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            specs = {
                name: TensorSpec(name, _DTYPES[part.get_dtype()], tuple(part.get_shape()))
                for name, part in slices.items()
            }
            return specs, file.metadata() or {}
    except (SafetensorError, OSError, KeyError) as error:
        raise WeightSyncError(f"cannot read weights from {path}: {error!r}") from error


def check_shared_memory(shared: SharedMemoryWeights, version: int) -> tuple[TensorSpec, ...]:
    """The layout of weights in shared memory, after a check that the file holds what was written for this policy version.

    What is copied from it counts only if this still holds after the last byte was copied.

    Raises:
        WeightSyncError: missing, being written, of another size, or written again since.
    """
    try:
        nbytes = shared.path.stat().st_size
    except OSError as error:
        raise WeightSyncError(f"cannot read weight file {shared.path}: {error}") from error
    if nbytes != shared.nbytes:
        raise WeightSyncError(f"weight file {shared.path} has {nbytes} bytes; published were {shared.nbytes}")
    specs, written = read_layout(shared.path)
    if int(written.get(VERSION_KEY, -1)) != version:
        raise WeightSyncError(
            f"weight file {shared.path} holds policy version {int(written.get(VERSION_KEY, -1))}, not {version}"
        )
    if written.get(STAMP_KEY) != shared.stamp:
        raise WeightSyncError(f"weight file {shared.path} was written again after policy version {version}")
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
        ModelError: names the missing and unexpected weights and those of another shape.
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
        raise ModelError(
            f"the learner offers {len(given)} weights, the generator takes {len(wanted)}; " + "; ".join(found)
        )


def in_order(
    layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """Each weight with its place in the layout, from a stream that must have exactly its names and shapes in its order.

    Raises:
        WeightSyncError: at the first that is another, one too few, or one too many.
    """
    stream = iter(tensors)
    for spec in layout:
        name, tensor = next(stream, (None, None))
        offered = None if tensor is None else (name, tuple(tensor.shape))
        if tensor is None or offered != (spec.name, spec.shape):
            raise WeightSyncError(f"the layout's next weight is {spec}, offered was {offered or 'nothing'}")
        yield spec, tensor
    extra = next(stream, None)
    if extra is not None:
        raise WeightSyncError(f"{extra[0]} was offered after all {len(layout)} weights of the layout")


def _first(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
