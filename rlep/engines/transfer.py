"""Runs inside vLLM's worker, which imports it through ``worker_extension_cls``: the ``segment`` weight transfer engine.

The ``nccl`` and ``ipc`` engines are vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rlep.engines.segment import Segment, check_segment


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


class SegmentTransferEngine(WeightTransferEngine[SegmentInitInfo, SegmentUpdateInfo]):
    """Loads a weight segment, written by ``rlep.engines.segment_writer``, through vLLM's layerwise reload."""

    init_info_cls = SegmentInitInfo
    update_info_cls = SegmentUpdateInfo

    _receiving: SegmentUpdateInfo | None = None

    def init_transfer_engine(self, init_info: SegmentInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Put the layers on the meta device; their old tensors are kept and written in place."""
        initialize_layerwise_reload(self.model)

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
        finalize_layerwise_reload(self.model, self.model_config)
        repack_live_weights(self.model)
        received, self._receiving = self._receiving, None
        if received is not None:
            received.check()

    def shutdown(self) -> None:
        """Nothing is held between updates."""


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

    def abandon_weight_update(self) -> None:
        """Forget an update that failed or was cancelled half way, so that the weights can be pushed again."""
        self._weight_update_active = False


WeightTransferEngineFactory.register_engine("segment", SegmentTransferEngine)
