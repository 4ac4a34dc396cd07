"""Weights over the network between GPUs: the trainer's side of vLLM's own NCCL weight transfer. Imports vLLM.

The driver has the generators take part at the same time, so vLLM's calls to them do nothing here. What vLLM lacks is added:
a barrier with a deadline before every transfer, and an end to a transfer that a dead member holds up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from rlep.core.errors import WeightSyncError, first_line
from rlep.engines.weights.broadcast import Barrier
from rlep.engines.weights.weight_update import NCCL_BUFFER_BYTES, BroadcastGroup, TensorSpec, in_order


class NcclSender:
    """Learner rank 0 in a group with the workers of all generators, on its current CUDA device."""

    def __init__(self, group: BroadcastGroup, store: dist.TCPStore) -> None:
        """Does nothing yet: ``store`` is the group's, on this machine."""
        self._group, self._barrier = group, Barrier(group, store)
        self._source = GatheredWeights()
        self._engine: Any = None

    def send(self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast ``tensors``, which come in the order of ``layout``, in the layout's dtypes.

        Raises:
            WeightSyncError: a member did not come or did not keep up within the deadline, or the tensors are not those of
                the layout.
        """
        port = _free_port(self._group.host)
        self._barrier.open(str(port))
        self._source.given = layout, tensors
        expired = threading.Event()
        deadline = threading.Timer(self._group.deadline_s, self._abort, [expired])
        deadline.start()
        try:
            self._transfer(port)
        except WeightSyncError:
            raise
        except (RuntimeError, ValueError) as error:
            raise WeightSyncError(f"the transfer over NCCL broke: {first_line(error)}") from error
        finally:
            deadline.cancel()
        if expired.is_set():  # vLLM passes over every call after an abort in silence
            raise WeightSyncError(
                f"the weights were not transferred within {self._group.deadline_s:.0f} s of the start"
            )

    def close(self) -> None:
        """Leave the group; a transfer that is under way is given up."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    def _transfer(self, port: int) -> None:
        group = self._group
        if self._engine is None:
            info = trainer_info(group, port)
            self._engine = WeightTransferTrainerFactory.trainer_init(info, client=_Driven(), source=self._source)
        self._engine.send_weights()

    def _abort(self, expired: threading.Event) -> None:
        expired.set()
        self.close()


def trainer_info(group: BroadcastGroup, port: int) -> NCCLTrainerInitInfo:
    """Description of a group for vLLM's trainer; the workers are told the same by ``sampler.weight_loading.init_info``."""
    return NCCLTrainerInitInfo(group.host, port, group.world_size, packed_buffer_size_bytes=NCCL_BUFFER_BYTES, rank=0)


class GatheredWeights(WeightSource):
    """The weights of one transfer as vLLM asks for them: it gathers as many at a time as fill one of its buffers."""

    given: tuple[Sequence[TensorSpec], Iterable[tuple[str, Tensor]]] = ((), ())

    def metadata(self) -> list[ParamMeta]:
        """Names, dtypes and shapes, in order."""
        return [ParamMeta(spec.name, getattr(torch, spec.dtype), spec.shape) for spec in self.given[0]]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor in the layout's dtype. Raises ``WeightSyncError`` at the first that the layout has not there."""
        for spec, tensor in in_order(*self.given):
            yield spec.name, tensor.detach().to(getattr(torch, spec.dtype))


class _Driven:
    """vLLM's ``VLLMWeightSyncClient``; the driver calls the generators itself."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
