"""Weights over the network: learner rank 0 broadcasts them, tensor by tensor, to every worker of every generator.

Over gloo between CPUs and over NCCL between GPUs, by the same code on torch's own backends. Both sides know names, shapes
and order beforehand, so only numbers travel: no object is pickled. The members meet at a store on rank 0's machine under a
random prefix; a group that failed is never used again.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlep.core.errors import WeightSyncError
from rlep.engines.torch_private import gloo_group, nccl_group
from rlep.engines.weights.publication import BroadcastGroup, GroupBackend, TensorSpec, in_order

_POLL_S = 0.0005
_TOKEN_BYTES = 16
_NCCL_ERRORS_KEY = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_ABORT_ONLY = "2"
"""torch's watchdog ends a failed communicator; its default would end the process."""


class Meeting:
    """Rank 0's store, where the members of one group find each other."""

    def __init__(self, address: str, backend: GroupBackend, world_size: int, deadline_s: float) -> None:
        """Listen on a free port of ``address`` only; returns at once."""
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
            listening.bind((address, 0))
            listening.listen(world_size)
            port = listening.getsockname()[1]
            self.store = dist.TCPStore(
                address,
                port,
                is_master=True,
                timeout=timedelta(seconds=deadline_s),
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        self.group = BroadcastGroup(backend, address, port, secrets.token_hex(_TOKEN_BYTES), 1, world_size, deadline_s)


class BroadcastMember:
    """One member's end of a group."""

    def __init__(self, group: BroadcastGroup, rank: int, store: dist.TCPStore | None = None) -> None:
        """Join; blocks until all members are there.

        Raises:
            WeightSyncError: one of them did not come within the deadline.
        """
        self._rank, self._deadline_s = rank, group.deadline_s
        timeout = timedelta(seconds=group.deadline_s)
        try:
            if store is None:
                store = dist.TCPStore(group.host, group.port, timeout=timeout, wait_for_workers=False)
            self._backend = _backend(group, rank, dist.PrefixStore(group.token, store), timeout)
        except RuntimeError as error:
            raise WeightSyncError(
                f"rank {rank} of {group.world_size} did not meet the others at {group.host}:{group.port} within "
                f"{group.deadline_s:.0f} s: {_first_line(error)}"
            ) from error

    def send(self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast ``tensors``, which come in the order of ``layout``, in the layout's dtypes; rank 0 only.

        Raises:
            WeightSyncError: a member is gone or did not keep up, or the tensors are not those of the layout.
        """
        until = time.monotonic() + self._deadline_s
        for spec, tensor in in_order(layout, tensors):
            self._broadcast(tensor.detach().to(getattr(torch, spec.dtype)).contiguous(), spec, until)

    def receive(self, layout: Sequence[TensorSpec], device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """What rank 0 sends, in new tensors. Raises as ``send`` does."""
        until = time.monotonic() + self._deadline_s
        for spec in layout:
            tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            self._broadcast(tensor, spec, until)
            yield spec.name, tensor

    def _broadcast(self, tensor: Tensor, spec: TensorSpec, until: float) -> None:
        try:
            left = max(until - time.monotonic(), _POLL_S)
            work = self._backend.broadcast(tensor.reshape(-1).view(torch.uint8), 0, timedelta(seconds=left))
            while not work.is_completed():
                if time.monotonic() > until:
                    raise WeightSyncError(
                        f"{spec.name} was not transferred within {self._deadline_s:.0f} s of the start"
                    )
                time.sleep(_POLL_S)
            work.wait()
        except WeightSyncError:
            raise
        except RuntimeError as error:
            raise WeightSyncError(f"the transfer of {spec.name} broke: {_first_line(error)}") from error

    def close(self) -> None:
        """Leave the group; whatever is still under way is given up."""
        with suppress(RuntimeError):  # a group that failed may say so again
            self._backend.abort()


def _backend(group: BroadcastGroup, rank: int, store: dist.Store, timeout: timedelta) -> dist.ProcessGroupGloo:
    if group.backend == "gloo":
        return gloo_group(store, rank, group.world_size, timeout)
    before = os.environ.get(_NCCL_ERRORS_KEY)
    os.environ[_NCCL_ERRORS_KEY] = _ABORT_ONLY  # read by the constructor
    try:
        return nccl_group(store, rank, group.world_size, 2 * timeout)  # ours comes first
    finally:
        if before is None:
            del os.environ[_NCCL_ERRORS_KEY]
        else:
            os.environ[_NCCL_ERRORS_KEY] = before


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
