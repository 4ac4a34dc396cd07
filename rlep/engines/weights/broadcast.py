"""Weights over the network between CPUs: learner rank 0 broadcasts them over gloo to every worker of every generator.

Both sides know names, shapes and order beforehand, so only numbers travel: no object is pickled. The members meet at a
store on rank 0's machine under a random prefix; a group that failed is never used again. Between GPUs the same store is
the barrier before vLLM's own NCCL transfer: ``rlep.engines.weights.nccl``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlep.core.errors import WeightSyncError, first_line
from rlep.engines.rendezvous import join_store, listen, serve_store
from rlep.engines.torch_private import gloo_group
from rlep.engines.weights.weight_update import BroadcastGroup, GroupBackend, TensorSpec, in_order

_POLL_S = 0.0005
_TOKEN_BYTES = 16


class Meeting:
    """Rank 0's store, where the members of one group find each other."""

    def __init__(self, address: str, backend: GroupBackend, world_size: int, deadline_s: float) -> None:
        """Listen on a free port of ``address`` only; returns at once."""
        listening = listen(address)
        port = listening.getsockname()[1]
        self.store = serve_store(listening, deadline_s)
        self.group = BroadcastGroup(backend, address, port, secrets.token_hex(_TOKEN_BYTES), 1, world_size, deadline_s)


class Barrier:
    """Before each transfer rank 0 waits for every member, for ``deadline_s``: the collective itself may have no deadline."""

    def __init__(self, group: BroadcastGroup, store: dist.TCPStore | None = None) -> None:
        """``store``: rank 0's own; the others connect to it. Raises ``WeightSyncError`` where they cannot."""
        self._group, self._round = group, 0
        self._timeout = timedelta(seconds=group.deadline_s)
        with _meeting_errors(group, "a generator"):
            self._store = _store_of(group, store)

    def open(self, word: str) -> None:
        """Rank 0: wait for every other rank, then send all of them ``word``. Raises ``WeightSyncError``."""
        self._round += 1
        with _meeting_errors(self._group, "rank 0"):
            self._store.wait([self._key(rank) for rank in range(1, self._group.world_size)], self._timeout)
            self._store.set(self._key(0), word)

    def arrive(self, ranks: Iterable[int]) -> str:
        """The members ``ranks`` are ready to take part; returns rank 0's word. Raises ``WeightSyncError``."""
        self._round += 1
        with _meeting_errors(self._group, f"ranks {list(ranks)}"):
            for rank in ranks:
                self._store.set(self._key(rank), "")
            self._store.wait([self._key(0)], self._timeout)
            return bytes(self._store.get(self._key(0))).decode()

    def _key(self, rank: int) -> str:
        return f"transfer-{self._round}/{rank}"


class BroadcastMember:
    """One member's end of a group over gloo."""

    def __init__(self, group: BroadcastGroup, rank: int, store: dist.TCPStore | None = None) -> None:
        """Join; blocks until all members are there.

        Raises:
            WeightSyncError: one of them did not come within the deadline.
        """
        self._deadline_s = group.deadline_s
        timeout = timedelta(seconds=group.deadline_s)
        with _meeting_errors(group, f"rank {rank}"):
            self._backend = gloo_group(_store_of(group, store), rank, group.world_size, timeout)

    def send(self, layout: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast ``tensors``, which come in the order of ``layout``, in the layout's dtypes; rank 0 only.

        Raises:
            WeightSyncError: a member is gone or did not keep up, or the tensors are not those of the layout.
        """
        until = time.monotonic() + self._deadline_s
        for spec, tensor in in_order(layout, tensors):
            self._broadcast(tensor.detach().to(getattr(torch, spec.dtype)).contiguous(), spec, until)

    def receive(self, layout: Sequence[TensorSpec], device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Receive what rank 0 sends, in new tensors. Raises as ``send`` does."""
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
            raise WeightSyncError(f"the transfer of {spec.name} broke: {first_line(error)}") from error

    def close(self) -> None:
        """Leave the group; whatever is still under way is given up."""
        with suppress(RuntimeError):  # a group that failed may say so again
            self._backend.abort()


def _store_of(group: BroadcastGroup, own: dist.TCPStore | None) -> dist.PrefixStore:
    return dist.PrefixStore(group.token, own or join_store(group.host, group.port, group.deadline_s))


@contextmanager
def _meeting_errors(group: BroadcastGroup, who: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise WeightSyncError(
            f"{who} of {group.world_size} did not meet the others at {group.host}:{group.port} within "
            f"{group.deadline_s:.0f} s: {first_line(error)}"
        ) from error
