"""The weights that generators serve and checkpoints hold, under their Hugging Face names: shards, with adapters merged in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlep.engines.learner.device_state import current_device
from rlep.engines.learner.lora import Adapter
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.weight_update import MODULUS, TensorSpec, WeightDtype


class FullWeights:
    """Every weight once, in a fixed order. Its methods are collective, but for ``layout``."""

    def __init__(self, shards: Sequence[tuple[str, DTensor]], adapters: Mapping[str, Adapter] | None = None) -> None:
        """``adapters``: by the name of the weight that each changes."""
        self._shards, self._adapters = tuple(shards), adapters or {}

    def layout(self, dtype: WeightDtype) -> tuple[TensorSpec, ...]:
        """Names and full shapes in the order they are gathered in."""
        return tuple(TensorSpec(name, dtype, tuple(parameter.shape)) for name, parameter in self._shards)

    def gathered(self, dtype: WeightDtype) -> Iterator[tuple[str, Tensor]]:
        """Every full weight in turn: all ranks must run it to its end. One gathered tensor exists at a time.

        Shards are rounded to ``dtype`` before they are gathered: the same bits as after it, for less traffic.
        On the ranks' devices, also of shards that rest in host memory: NCCL takes them from nowhere else.
        """
        for name, parameter in self._shards:
            mesh = parameter.device_mesh
            with torch.no_grad():
                shard = self._merged(name, parameter).to(current_device(mesh.device_type), getattr(torch, dtype))
                yield name, shard.full_tensor() if mesh.size() > 1 else shard.to_local()

    def checksums(self, dtype: WeightDtype) -> tuple[int, ...]:
        """The checksum of each full weight in ``dtype``; only the sums travel."""
        mesh = self._shards[0][1].device_mesh
        local = (self._merged(name, shard).to_local().to(getattr(torch, dtype)) for name, shard in self._shards)
        sums = torch.stack([checksum(shard) for shard in local]).to(current_device(mesh.device_type))
        if mesh.ndim > 1 and mesh.get_local_rank(0):
            sums.zero_()  # replicas hold the same weights
        if mesh.size() > 1:
            dist.all_reduce(sums)
        return tuple((sums % MODULUS).tolist())

    def on_host(self, dtype: WeightDtype) -> dict[str, Tensor]:
        """Copies of all weights in host memory on rank 0, nothing on the others."""
        keeps = dist.get_rank() == 0
        return {name: weight.to("cpu", copy=True) for name, weight in self.gathered(dtype) if keeps}

    def _merged(self, name: str, shard: DTensor) -> DTensor:
        adapter = self._adapters.get(name)
        return shard.detach() if adapter is None else adapter.merged(shard.detach())
