"""Weights over the network between GPUs: the sender of vLLM's own packed NCCL broadcast. Imports vLLM.

vLLM's class for trainers also calls the generators, which the driver does here, and its interface changes with the version
(0.33 has another ``WeightSource`` than 0.32); the two functions below it do not. What they lack is added: a barrier with a
deadline before every transfer, and an end to a transfer that a dead member holds up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from rlep.core.errors import WeightSyncError, first_line
from rlep.engines.weights.broadcast import Barrier
from rlep.engines.weights.weight_update import NCCL_BUFFER_BYTES, BroadcastGroup, TensorSpec, in_order


class NcclSender:
    """Learner rank 0 in a group with the workers of all generators, on its current CUDA device."""

    def __init__(self, group: BroadcastGroup, store: dist.TCPStore) -> None:
        """Does nothing yet: ``store`` is the group's, on this machine."""
        self._group, self._barrier = group, Barrier(group, store)
        self._communicator: Any = None

    def send(self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast ``tensors``, which come in the order of ``layout``, in the layout's dtypes.

        Raises:
            WeightSyncError: a member did not come or did not keep up within the deadline, or the tensors are not those of
                the layout.
        """
        port = _free_port(self._group.host)
        self._barrier.open(str(port))
        expired = threading.Event()
        deadline = threading.Timer(self._group.deadline_s, self._abort, [expired])
        deadline.start()
        try:
            self._transfer(port, cast_weights(layout, tensors))
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
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.destroy()

    def _transfer(self, port: int, weights: Iterator[tuple[str, Tensor]]) -> None:
        group = self._group
        if self._communicator is None:
            place = {"master_address": group.host, "master_port": port, "world_size": group.world_size}
            self._communicator = nccl_common.trainer_init(place)
        packed_tensor.packed_nccl_broadcast_producer(
            weights, self._communicator, 0, lambda weight: weight[1], buffer_size_bytes=NCCL_BUFFER_BYTES
        )

    def _abort(self, expired: threading.Event) -> None:
        expired.set()
        self.close()


def cast_weights(layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor in the layout's dtype. Raises ``WeightSyncError`` at the first that the layout has not there.

    vLLM takes as many at a time as fill one of its buffers.
    """
    for spec, tensor in in_order(layout, tensors):
        yield spec.name, tensor.detach().to(getattr(torch, spec.dtype))


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
