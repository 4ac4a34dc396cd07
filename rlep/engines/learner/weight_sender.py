"""The sending side of a weight update: full tensors gathered one at a time, written into shared memory or broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from rlep.algorithms.packing import plain_batch
from rlep.core.errors import UpdateError
from rlep.core.types import Float32Array, Int32Array, SequenceBatch
from rlep.engines.learner.full_weights import FullWeights
from rlep.engines.learner.optimizer import StepResult
from rlep.engines.weights.broadcast import BroadcastMember, Meeting
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import (
    LOGPROB_TOLERANCE,
    BroadcastGroup,
    GroupBackend,
    Probe,
    SharedMemoryWeights,
    TensorSpec,
    WeightDtype,
    WeightUpdate,
)

if TYPE_CHECKING:
    from rlep.engines.weights.nccl import NcclSender


class ChangeCheck:
    """A check that applied updates change the weights, from one publication to the next."""

    def __init__(self) -> None:
        self._published: tuple[int, ...] = ()
        self._stepped = False

    def note(self, step: StepResult) -> None:
        """An optimizer step was made; one that was skipped, or had no gradient or no learning rate, need not change anything."""
        self._stepped |= step.applied and step.lr > 0 and step.grad_norm > 0

    def forget(self) -> None:
        """Other weights were loaded."""
        self._published, self._stepped = (), False

    def check(self, weights: FullWeights, version: int) -> tuple[int, ...]:
        """Before ``version`` is published; collective. Returns the checksums of the master weights.

        The master weights count, not what is published of them: a small step may change no bfloat16 weight.

        Raises:
            UpdateError: they are those of the publication before, in spite of the updates.
        """
        present = weights.checksums("float32")
        if self._stepped and present == self._published:
            raise UpdateError(
                f"the updates before policy version {version} were applied and changed no weight: "
                "update.lr is too small for float32, or the optimizer does not step the weights that are published"
            )
        self._published, self._stepped = present, False
        return present


def weight_update(
    weights: FullWeights,
    source: SharedMemoryWeights | BroadcastGroup,
    version: int,
    probes: Sequence[Probe],
    dtype: WeightDtype,
    *,
    checksums: tuple[int, ...],
) -> WeightUpdate:
    """Return what the generators need to take the weights from ``source`` and to check them."""
    return WeightUpdate(version, weights.layout(dtype), source, tuple(probes), LOGPROB_TOLERANCE[dtype], checksums)


def write_weights(
    weights: FullWeights, writer: SharedMemoryWriter | None, version: int, dtype: WeightDtype
) -> SharedMemoryWeights | None:
    """Write one policy version into shared memory; collective. Rank 0 has the writer, and returns where they are.

    Raises:
        WeightSyncError: they cannot be written (on rank 0; the other ranks are not held up).
    """
    stream = weights.gathered(dtype)
    try:
        return None if writer is None else writer.write(weights.layout(dtype), stream, version)
    finally:
        _exhaust(stream)


class WeightSender:
    """Learner rank 0's place in a group with the generators; made anew with every group."""

    def __init__(self, address: str, backend: GroupBackend, world_size: int, deadline_s: float) -> None:
        """Begin to wait for the others at a free port of ``address``; returns at once."""
        self._meeting = Meeting(address, backend, world_size, deadline_s)
        self._link: BroadcastMember | NcclSender | None = None

    @property
    def group(self) -> BroadcastGroup:
        """The group that the generators join."""
        return self._meeting.group

    def send(self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Meet the generators, the first time, and broadcast. Raises ``WeightSyncError``."""
        if self._link is None:
            self._link = self._join()
        self._link.send(layout, tensors)

    def close(self) -> None:
        """Give the group up."""
        if self._link is not None:
            self._link.close()

    def _join(self) -> BroadcastMember | NcclSender:
        if self.group.backend == "gloo":
            return BroadcastMember(self.group, 0, self._meeting.store)
        from rlep.engines.weights.nccl import NcclSender  # imports vLLM

        return NcclSender(self.group, self._meeting.store)


def send_weights(weights: FullWeights, sender: WeightSender | None, dtype: WeightDtype) -> None:
    """Broadcast the weights to the generators; collective. Rank 0 has the sender.

    Raises:
        WeightSyncError: a generator is gone, did not come, or did not keep up (on rank 0; the other ranks are not held up).
    """
    stream = weights.gathered(dtype)
    try:
        if sender is not None:
            sender.send(weights.layout(dtype), stream)
    finally:
        _exhaust(stream)


def scored_probes(
    probes: Sequence[tuple[Int32Array, Int32Array]], score: Callable[[SequenceBatch], Float32Array]
) -> list[Probe]:
    """Prompts ``[P]`` and responses ``[T]`` with the responses' log-probs, all scored as one batch."""
    batch = probe_batch(probes)
    logprobs = np.split(score(batch), np.cumsum(batch.sampled_lengths)[:-1])
    return [Probe(prompt, response, scored) for (prompt, response), scored in zip(probes, logprobs, strict=True)]


def probe_batch(probes: Sequence[tuple[Int32Array, Int32Array]]) -> SequenceBatch:
    """(prompt ``[P]``, response ``[T]``) token ids as a batch to score."""
    lengths = [len(prompt) + len(response) for prompt, response in probes]
    tokens = np.concatenate([part for probe in probes for part in probe])
    return plain_batch(tokens, lengths, [len(prompt) for prompt, _ in probes])


def _exhaust(stream: Iterator[tuple[str, Tensor]]) -> None:
    for _ in stream:
        pass
