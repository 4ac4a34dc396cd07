"""Runs inside vLLM's worker, which imports it through ``worker_extension_cls``: rlep's engines for vLLM's weight transfer.

``rlep-shared-memory`` reads a file in shared memory, ``rlep-gloo`` takes part in a broadcast between CPUs. Over NCCL vLLM's
own ``nccl`` takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rlep.core.errors import WeightSyncError
from rlep.engines.sampler.vllm_private import forget_weight_update, kv_copies, pack_cpu_matrix
from rlep.engines.weights.broadcast import BroadcastMember
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.weight_update import (
    BroadcastGroup,
    GroupBackend,
    SharedMemoryWeights,
    TensorSpec,
    check_shared_memory,
)

InitInfo = TypeVar("InitInfo", bound=WeightTransferInitInfo)
UpdateInfo = TypeVar("UpdateInfo", bound=WeightTransferUpdateInfo)


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand: each update names its file."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """One whole policy version in one file."""

    path: str
    nbytes: int
    stamp: str
    version: int
    checksums: dict[str, int]
    """Of each weight by name."""

    def check(self) -> None:
        """Raise ``WeightSyncError`` unless the file holds exactly what was published."""
        check_shared_memory(SharedMemoryWeights(Path(self.path), self.nbytes, self.stamp), self.version)


class _LayerwiseEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """An update through vLLM's layerwise reload, which writes the weights that the kernels use in place."""

    def start_weight_update(self) -> None:
        """Put the layers on the meta device; their old tensors are kept."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Make the kernels use the new weights."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_live_weights(self.model)


class SharedMemoryEngine(_LayerwiseEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Loads a file written by ``rlep.engines.weights.shared_memory``."""

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo
    _receiving: SharedMemoryUpdateInfo | None = None

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        """Nothing to set up."""

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        """Load every weight of the file; each tensor-parallel rank keeps its own part.

        Raises:
            WeightSyncError: the file does not hold what was published.
        """
        update_info.check()
        self._receiving = update_info
        self.model.load_weights(published_tensors(Path(update_info.path), update_info.checksums, self.device))

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
class GlooInitInfo(WeightTransferInitInfo):
    """The fields of ``rlep.engines.weights.weight_update.BroadcastGroup``."""

    backend: GroupBackend
    host: str
    port: int
    token: str
    first_rank: int
    world_size: int
    deadline_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """The layout in the order of the broadcasts."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooEngine(_LayerwiseEngine[GlooInitInfo, GlooUpdateInfo]):
    """Takes part in the learner's broadcast; each tensor-parallel rank is a member and keeps its own part."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _member: BroadcastMember | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join a group; blocks until all its members are there. Raises ``WeightSyncError``."""
        group = BroadcastGroup(**vars(init_info))
        self._member = BroadcastMember(group, group.first_rank + self.parallel_config.rank)

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Load every weight as it arrives. Raises ``WeightSyncError``."""
        if self._member is None:
            raise WeightSyncError("this generator is in no group of a learner")
        triples = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        layout = [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in triples]
        self.model.load_weights(self._member.receive(layout, self.device))

    def shutdown(self) -> None:
        """Leave the group."""
        member, self._member = self._member, None
        if member is not None:
            member.close()


def published_tensors(
    path: Path, checksums: Mapping[str, int], device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight of a published file, on ``device``, once its checksum was compared there.

    Raises ``WeightSyncError`` at the first that is not what was published.
    """
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name).to(device)
            if int(checksum(tensor)) != checksums[name]:
                raise WeightSyncError(f"{name} in {path} is not what was published")
            yield name, tensor


def repack_live_weights(model: torch.nn.Module) -> None:
    """Pack again every CPU matrix whose module still holds its weight.

    vLLM on CPU multiplies by a packed copy. Linear layers drop the weight and are packed again by the reload; an output
    head that is tied to the embedding keeps it, and its packed copy would silently stay at the old policy.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and isinstance(weight, torch.Tensor) and weight.numel():
            pack_cpu_matrix(module)


def held_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Every weight of a model of vLLM's by its name there, with the fields of ``weights.held_weights.HeldWeight``.

    Checksums are those of the values in ``dtype``, the published type, which vLLM's CPU kernels widen for some biases. The
    tensors that several layers share, such as a tied head, come once.
    """
    found = {}
    for name, weight in model.named_parameters():
        packed = not weight.numel() and hasattr(model.get_submodule(name.rpartition(".")[0]), "cpu_linear")
        total = None if packed else int(checksum(weight.to(dtype)))
        found[name] = {"parts": _parts(model, name), "elements": weight.numel(), "checksum": total}
    return found


def _parts(model: torch.nn.Module, name: str) -> dict[str, int]:
    """Weights of the checkpoint that one of vLLM's is fused from -> copies of each over all workers."""
    layer, _, leaf = name.rpartition(".")
    owner, _, fused = layer.rpartition(".")
    parts, copies = (
        getattr(model, "packed_modules_mapping", {}).get(fused, [fused]),
        kv_copies(model.get_submodule(layer)),
    )
    counts = [1, copies, copies] if copies > 1 else [1] * len(parts)
    if len(counts) != len(parts):
        return {}  # copies of k and v beside q, in one published weight whose checksum does not tell them apart
    return {".".join(filter(None, (owner, part, leaf))): count for part, count in zip(parts, counts, strict=True)}


class WorkerExtension:
    """Methods that vLLM mixes into its worker, called by ``collective_rpc``."""

    vllm_config: VllmConfig
    model_runner: Any
    weight_transfer_engine: WeightTransferEngine[Any, Any]

    def held_weights(self) -> dict[str, dict[str, Any]]:
        """Every weight of this worker by vLLM's name, with the fields of ``weights.held_weights.HeldWeight``."""
        return held_weights(self.weight_transfer_engine.model, self.vllm_config.model_config.dtype)

    def abandon_weight_update(self) -> None:
        """Forget an update that failed or was cancelled half way, so that the weights can be pushed again.

        The layers are whole afterwards, their weights are not; vLLM 0.32 would go on with layers that were loaded in part.
        Without such an update it does nothing.
        """
        engine = self.weight_transfer_engine
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(engine.model, engine.model_config)
        forget_weight_update(self)


WeightTransferEngineFactory.register_engine("rlep-shared-memory", SharedMemoryEngine)
WeightTransferEngineFactory.register_engine("rlep-gloo", GlooEngine)
