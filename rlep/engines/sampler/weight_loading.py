"""Published weights into one engine, through vLLM's weight transfer: from shared memory, over gloo, or over NCCL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlep.config.roles import GeneratorConfig
from rlep.core.errors import WeightSyncError
from rlep.engines.weights.held_weights import HeldWeight, Worker, check_held, parts_of
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


class WeightLoading:
    """Weights that one engine holds, and its group with the learner."""

    def __init__(self, held: Worker, files: Mapping[str, TensorSpec], generator: GeneratorConfig) -> None:
        """``held``: by one worker after the start; ``files``: the weights of the model directory.

        Files may hold more than the engine keeps: a tied output head once more, buffers of older versions.
        """
        self._held, self._files, self._generator = held, files, generator
        self._group: BroadcastGroup | None = None
        self._barrier: Barrier | None = None

    async def check(self, weight_update: WeightUpdate) -> None:
        """Refuse, before anything is touched, what is not the model's full set of weights by the configured transport.

        Raises:
            WeightSyncError: another transport, or a file that is not what was published.
            ModelError: learner and engine disagree on which weights the model has, which no other attempt changes.
        """
        source, wanted = weight_update.source, self._generator.transfer
        if wanted != (source.backend if isinstance(source, BroadcastGroup) else "shared_memory"):
            raise WeightSyncError(f"this generator takes weights by {wanted}, published was {source!r:.80}")
        taken = {part for parts in parts_of(self._held, self._files).values() for part in parts}
        expected = [spec for name, spec in self._files.items() if name in taken]
        layouts = [weight_update.layout]
        if isinstance(source, SharedMemoryWeights):
            layouts.append(await asyncio.to_thread(check_shared_memory, source, weight_update.version))
        for layout in layouts:
            check_layout(expected, layout)

    async def load(self, engine: AsyncLLMEngine, weight_update: WeightUpdate) -> None:
        """Replace the weights of a paused engine, and compare what each worker holds then with what was published.

        Raises ``WeightSyncError``, or what vLLM raises for the transfer.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await engine.collective_rpc("abandon_weight_update")
        if isinstance(weight_update.source, BroadcastGroup):
            await self._join(engine, weight_update.source)
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(update_info(weight_update)))
        await engine.finish_weight_update(str(weight_update.version))
        sizes = {spec.name: spec.elements for spec in weight_update.layout}
        explained = parts_of(self._held, self._files)
        check_held(await held_by(engine), explained, sizes, weight_update.named_checksums)

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


async def held_by(engine: AsyncLLMEngine) -> list[Worker]:
    """Return the weights that each tensor-parallel worker of an engine holds, which must not be asleep."""
    workers = await engine.collective_rpc("held_weights")
    return [{name: HeldWeight(**weight) for name, weight in worker.items()} for worker in workers]


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
            "checksums": weight_update.named_checksums,
        }
    return {
        "names": [spec.name for spec in weight_update.layout],
        "dtype_names": [spec.dtype for spec in weight_update.layout],
        "shapes": [list(spec.shape) for spec in weight_update.layout],
    }
