"""Weights as the workers of an engine hold them, compared with the published ones to the bit.

An engine fuses some weights (q, k and v; gate and up), pads the vocabulary with zeros, and cuts most into a shard for each
tensor-parallel worker. A checksum is a sum over elements, so that all of this only adds: the checksums of what a weight is
fused from, and those of its shards, add up, and zeros add nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlep.core.errors import ModelError, WeightSyncError
from rlep.core.plural import counted, named
from rlep.engines.weights.weight_update import MODULUS

Parts = Mapping[str, int]
"""Published weights that one weight of the engine consists of -> copies of each that all workers hold together."""


@dataclass(frozen=True, slots=True)
class HeldWeight:
    """One weight as one worker holds it."""

    parts: Parts
    """By the engine's own mapping; empty where the copies of its parts cannot be told apart."""
    elements: int
    """Count of the worker's own numbers."""
    checksum: int | None
    """None where the worker holds nothing but a copy that is packed for a CPU's kernels."""


Worker = Mapping[str, HeldWeight]
"""All weights of one worker by the engine's names."""


def parts_of(worker: Worker, published: Collection[str]) -> dict[str, Parts]:
    """Return what each weight of the engine consists of, where weights of the names ``published`` can be offered.

    Raises:
        ModelError: names the weights that are explained by no published one, so that nobody could say whether they are right.
    """
    names, explained = set(published), {}
    for name, weight in worker.items():
        if weight.parts and weight.parts.keys() <= names:
            explained[name] = weight.parts
        elif name in names and set(weight.parts.values()) == {1}:  # a family that is published as the engine fuses it
            explained[name] = {name: 1}
    if unknown := sorted(worker.keys() - explained.keys()):
        raise ModelError(
            f"the engine holds {counted(len(unknown), 'weight')} that no published weight explains, so that a stale one "
            f"would not be seen: {named(unknown)}"
        )
    return explained


def check_held(
    workers: Sequence[Worker], explained: Mapping[str, Parts], sizes: Mapping[str, int], checksums: Mapping[str, int]
) -> None:
    """Compare every weight of every worker with what was published, ``sizes`` (elements) and ``checksums`` by name.

    Raises:
        WeightSyncError: names the weights that are others, or that an engine holds only now.
    """
    if unknown := sorted({name for worker in workers for name in worker} ^ explained.keys()):
        raise WeightSyncError(f"the engine's weights are not those that it started with: {named(unknown)}")
    stale = []
    for name, parts in explained.items():
        shards = [worker[name] for worker in workers]
        sums = [shard.checksum for shard in shards if shard.checksum is not None]
        published = sum(copies * checksums[part] for part, copies in parts.items()) % MODULUS
        whole = shards[0].elements == sum(sizes[part] for part in parts)  # then each worker holds all of it
        if any(held != published for held in sums) if whole else sums and sum(sums) % MODULUS != published:
            stale.append(name)
    if stale:
        raise WeightSyncError(
            f"{len(stale)} of the engine's {counted(len(explained), 'weight')} are not what was published: {named(sorted(stale))}"
        )
