"""The sending side of a weight update: full tensors gathered one at a time, written where generators load them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlep.engines.segment import Probe, Publication, TensorSpec
from rlep.engines.segment_writer import SegmentWriter

WeightDtype = Literal["float32", "bfloat16", "float16"]

LOGPROB_TOLERANCE: dict[WeightDtype, float] = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.2}
"""Largest log-prob difference (nats) between learner and generator that rounding explains, by the generator's dtype."""


def weight_layout(shards: Sequence[tuple[str, DTensor]], dtype: WeightDtype) -> tuple[TensorSpec, ...]:
    """Names and full shapes of the weights in the order they are gathered in."""
    return tuple(TensorSpec(name, dtype, tuple(parameter.shape)) for name, parameter in shards)


def gathered(shards: Sequence[tuple[str, DTensor]]) -> Iterator[tuple[str, Tensor]]:
    """Every full weight in turn; collective: all ranks must run it to its end. One gathered tensor exists at a time."""
    for name, parameter in shards:
        with torch.no_grad():
            yield name, parameter.full_tensor() if parameter.device_mesh.size() > 1 else parameter.to_local()


def publish_segment(
    shards: Sequence[tuple[str, DTensor]],
    writer: SegmentWriter | None,
    version: int,
    probes: Sequence[Probe],
    dtype: WeightDtype,
) -> Publication | None:
    """Write one policy version into a segment; collective. Rank 0 has the writer, and returns what the generators need.

    Raises:
        WeightSyncError: the segment cannot be written (on rank 0; the other ranks are not held up).
    """
    stream = gathered(shards)
    if writer is None:
        _exhaust(stream)
        return None
    layout = weight_layout(shards, dtype)
    try:
        segment = writer.write(layout, stream, version)
    finally:
        _exhaust(stream)
    return Publication(version, layout, segment, tuple(probes), LOGPROB_TOLERANCE[dtype])


def _exhaust(stream: Iterator[tuple[str, Tensor]]) -> None:
    for _ in stream:
        pass
