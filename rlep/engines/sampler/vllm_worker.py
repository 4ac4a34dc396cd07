"""Runs inside vLLM's worker, which imports it through ``worker_extension_cls``: rlep's engines for vLLM's weight transfer.

``rlep-segment`` reads shared memory, ``rlep-group`` takes part in a broadcast over gloo or NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rlep.core.errors import WeightSyncError
from rlep.engines.cpu.draws import DrawnAhead
from rlep.engines.weights.broadcast import BroadcastMember
from rlep.engines.weights.publication import BroadcastGroup, GroupBackend, Segment, TensorSpec, check_segment

InitInfo = TypeVar("InitInfo", bound=WeightTransferInitInfo)
UpdateInfo = TypeVar("UpdateInfo", bound=WeightTransferUpdateInfo)


@dataclass
class SegmentInitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand: each update names its file."""


@dataclass
class SegmentUpdateInfo(WeightTransferUpdateInfo):
    """One whole policy version in one file."""

    path: str
    nbytes: int
    stamp: str
    version: int

    def check(self) -> None:
        """Raise ``WeightSyncError`` unless the file holds exactly what was published."""
        check_segment(Segment(Path(self.path), self.nbytes, self.stamp), self.version)


class _LayerwiseEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """An update through vLLM's layerwise reload, which writes the weights that the kernels use in place."""

    _under_way = False

    def start_weight_update(self) -> None:
        """Put the layers on the meta device; their old tensors are kept."""
        self._under_way = True
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Make the kernels use the new weights."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_live_weights(self.model)
        self._under_way = False

    def abandon(self) -> None:
        """End an update that broke off, so that another may start: the layers are whole again, their weights are not.

        Otherwise vLLM 0.32 would take up the layers that were loaded in part where they are.
        """
        if self._under_way:
            finalize_layerwise_reload(self.model, self.model_config)
        self._under_way = False


class SegmentTransferEngine(_LayerwiseEngine[SegmentInitInfo, SegmentUpdateInfo]):
    """Loads a weight segment, written by ``rlep.engines.weights.shared_memory``."""

    init_info_cls = SegmentInitInfo
    update_info_cls = SegmentUpdateInfo
    _receiving: SegmentUpdateInfo | None = None

    def init_transfer_engine(self, init_info: SegmentInitInfo) -> None:
        """Nothing to set up."""

    def receive_weights(self, update_info: SegmentUpdateInfo) -> None:
        """Load every weight of the file; each tensor-parallel rank keeps its own part.

        Raises:
            WeightSyncError: the file does not hold what was published.
        """
        update_info.check()
        self._receiving = update_info
        self.model.load_weights(_tensors(update_info.path))

    def finish_weight_update(self) -> None:
        """Make the kernels use the new weights. Some layers are copied only here, so here the file is checked again.

        Raises:
            WeightSyncError: the learner began to write another version into the file meanwhile.
        """
        super().finish_weight_update()
        received, self._receiving = self._receiving, None
        if received is not None:
            received.check()

    def shutdown(self) -> None:
        """Nothing is held between updates."""


@dataclass
class GroupInitInfo(WeightTransferInitInfo):
    """The fields of ``rlep.engines.weights.publication.Group``."""

    backend: GroupBackend
    host: str
    port: int
    token: str
    first_rank: int
    world_size: int
    deadline_s: float


@dataclass
class GroupUpdateInfo(WeightTransferUpdateInfo):
    """The layout in the order of the broadcasts."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GroupTransferEngine(_LayerwiseEngine[GroupInitInfo, GroupUpdateInfo]):
    """Takes part in the learner's broadcast; each tensor-parallel rank is a member and keeps its own part."""

    init_info_cls = GroupInitInfo
    update_info_cls = GroupUpdateInfo
    _link: BroadcastMember | None = None

    def init_transfer_engine(self, init_info: GroupInitInfo) -> None:
        """Join a group; blocks until all its members are there. Raises ``WeightSyncError``."""
        group = BroadcastGroup(**vars(init_info))
        self._link = BroadcastMember(group, group.first_rank + self.parallel_config.rank)

    def receive_weights(self, update_info: GroupUpdateInfo) -> None:
        """Load every weight as it arrives. Raises ``WeightSyncError``."""
        if self._link is None:
            raise WeightSyncError("this generator is in no group of a learner")
        triples = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
        layout = [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in triples]
        self.model.load_weights(self._link.receive(layout, self.device))

    def shutdown(self) -> None:
        """Leave the group."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name)


def repack_live_weights(model: torch.nn.Module) -> None:
    """Pack again every CPU matrix whose module still holds its weight.

    vLLM on CPU multiplies by a packed copy. Linear layers drop the weight and are packed again by the reload; an output
    head that is tied to the embedding keeps it, and its packed copy would silently stay at the old policy.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and isinstance(weight, torch.Tensor) and weight.numel():
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


class WorkerExtension:
    """Methods that vLLM mixes into its worker, called by ``collective_rpc``."""

    _weight_update_active: bool
    vllm_config: VllmConfig
    model_runner: Any
    weight_transfer_engine: _LayerwiseEngine[Any, Any]

    def abandon_weight_update(self) -> None:
        """Forget an update that failed or was cancelled half way, so that the weights can be pushed again."""
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.abandon()
        self._weight_update_active = False

    def draw_ahead(self) -> None:
        """Sample on a CPU by ``DrawnAhead``; elsewhere, and on CPUs that vLLM has no kernel for, nothing changes."""
        sampler = self.model_runner.sampler
        # vLLM's second model runner, which it takes on GPUs, draws in one kernel and has no such part.
        theirs = getattr(sampler, "topk_topp_sampler", None)
        if theirs is not None and theirs.forward == theirs.forward_cpu:
            sampler.topk_topp_sampler = DrawnAhead()


WeightTransferEngineFactory.register_engine("rlep-segment", SegmentTransferEngine)
WeightTransferEngineFactory.register_engine("rlep-group", GroupTransferEngine)
