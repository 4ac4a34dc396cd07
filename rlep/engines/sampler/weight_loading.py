"""Published weights into one engine, through vLLM's weight transfer: from shared memory, over gloo, or over NCCL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlep.config.roles import GeneratorConfig
from rlep.core.errors import WeightSyncError
from rlep.core.plural import counted
from rlep.engines.weights.weight_update import (
    NCCL_BUFFER_BYTES,
    BroadcastGroup,
    SharedMemoryWeights,
    TensorSpec,
    WeightUpdate,
    check_layout,
    check_shared_memory,
)

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine

    from rlep.engines.weights.broadcast import Barrier

TIED_HEAD = "lm_head.weight"
"""Some checkpoints hold a tied output head twice; vLLM and the learner do not."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checksums of one version: as it was published, and as each worker holds it, by name."""

    published: Mapping[str, int]
    workers: tuple[Mapping[str, int], ...]

    def check_after(self, before: Loaded | None) -> None:
        """Raise ``WeightSyncError`` where published weights differ from those of ``before`` and the workers' do not.

        Of weights that vLLM holds under the same name: it merges some, and on CPUs it packs most.
        """
        if before is None:
            return
        held = {name for worker in self.workers for name in worker}
        changed = {name for name in held & self.published.keys() if self.published[name] != before.published.get(name)}
        same = all(
            now[name] == was.get(name)
            for now, was in zip(self.workers, before.workers, strict=True)
            for name in changed & now.keys()
        )
        if changed and same:
            raise WeightSyncError(
                f"{counted(len(changed), 'weight')} changed from the publication before, and the engine still has the old values"
            )


class WeightLoading:
    """Weights that one engine expects, and its group with the learner."""

    def __init__(self, expected: dict[str, TensorSpec], generator: GeneratorConfig) -> None:
        """``expected``: every weight of the model by name; without ``TIED_HEAD`` where it is the embedding."""
        self._expected, self._generator = expected, generator
        self._group: BroadcastGroup | None = None
        self._barrier: Barrier | None = None
        self._loaded: Loaded | None = None

    async def check(self, weight_update: WeightUpdate) -> None:
        """Raise ``WeightSyncError`` where this is not the model's full set of weights by the configured transport."""
        source, wanted = weight_update.source, self._generator.transfer
        if wanted != (source.backend if isinstance(source, BroadcastGroup) else "shared_memory"):
            raise WeightSyncError(f"this generator takes weights by {wanted}, published was {source!r:.80}")
        layouts = [weight_update.layout]
        if isinstance(source, SharedMemoryWeights):
            layouts.append(await asyncio.to_thread(check_shared_memory, source, weight_update.version))
        for layout in layouts:
            kept = [spec for spec in layout if spec.name != TIED_HEAD or TIED_HEAD in self._expected]
            check_layout(self._expected.values(), kept)

    async def load(self, engine: AsyncLLMEngine, weight_update: WeightUpdate) -> None:
        """Replace the weights of a paused engine. Raises ``WeightSyncError``, or what vLLM raises for the transfer."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await engine.collective_rpc("abandon_weight_update")
        if isinstance(weight_update.source, BroadcastGroup):
            await self._join(engine, weight_update.source)
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(update_info(weight_update)))
        await engine.finish_weight_update(str(weight_update.version))
        if weight_update.checksums:
            loaded = Loaded(_named_checksums(weight_update), tuple(await engine.collective_rpc("weight_checksums")))
            loaded.check_after(self._loaded)
            self._loaded = loaded

    async def _join(self, engine: AsyncLLMEngine, group: BroadcastGroup) -> None:
        """Be a member of ``group``; before a transfer over NCCL wait until every member is there."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        joined, port = group == self._group, 0
        if not joined:
            self._group = None
            await engine.shutdown_weight_transfer_engine()
        if group.backend == "nccl":
            port = await asyncio.to_thread(self._arrive, group, joined)
        if not joined:
            await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info(group, port)))
            self._group = group

    def _arrive(self, group: BroadcastGroup, joined: bool) -> int:
        from rlep.engines.weights.broadcast import Barrier

        if self._barrier is None or not joined:
            self._barrier = Barrier(group)
        workers = range(group.first_rank, group.first_rank + self._generator.tensor_parallel)
        return int(self._barrier.arrive(workers))


def init_info(group: BroadcastGroup, port: int) -> dict[str, Any]:
    """Describe a group to the transfer engine; ``port``: where rank 0 opens vLLM's NCCL group."""
    if group.backend == "gloo":
        return asdict(group)
    return {
        "master_address": group.host,
        "master_port": port,
        "rank_offset": group.first_rank,
        "world_size": group.world_size,
        "packed": True,
        "packed_buffer_size_bytes": NCCL_BUFFER_BYTES,
    }


def update_info(weight_update: WeightUpdate) -> dict[str, Any]:
    """Describe a weight update to the transfer engine."""
    source = weight_update.source
    if isinstance(source, SharedMemoryWeights):
        return {
            "path": str(source.path),
            "nbytes": source.nbytes,
            "stamp": source.stamp,
            "version": weight_update.version,
            "checksums": _named_checksums(weight_update),
        }
    return {
        "names": [spec.name for spec in weight_update.layout],
        "dtype_names": [spec.dtype for spec in weight_update.layout],
        "shapes": [list(spec.shape) for spec in weight_update.layout],
    }


def _named_checksums(weight_update: WeightUpdate) -> dict[str, int]:
    """By the names of the layout; empty where the update comes without."""
    sums = weight_update.checksums
    return {spec.name: one for spec, one in zip(weight_update.layout, sums, strict=True)} if sums else {}
