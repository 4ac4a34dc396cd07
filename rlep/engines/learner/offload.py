"""A learner's state on the host while generators have its device's memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage


class OffloadedState:
    """Moves storages, not tensors: parameters, shards of them and moments stay the same objects, so nothing else changes."""

    def __init__(self) -> None:
        self._held: list[tuple[UntypedStorage, Tensor]] = []
        """Emptied storages and their bytes."""
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        """Pinned memory of the sleep before, by size: to pin it takes longer than to fill it."""

    def offload(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Free the memory of those tensors that are on ``device``; they must not be used until ``fetch``."""
        storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == device.type]
        distinct = {storage.data_ptr(): storage for storage in storages if storage.nbytes()}
        for storage in distinct.values():
            free, nbytes = self._free[storage.nbytes()], storage.nbytes()
            host = free.pop() if free else torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
            self._held.append((storage, host.copy_(_bytes(storage))))
            storage.resize_(0)
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def fetch(self) -> None:
        """Bring everything back, to the bit."""
        while self._held:
            storage, host = self._held.pop()
            storage.resize_(host.numel())
            _bytes(storage).copy_(host)
            if host.is_pinned():
                self._free[host.numel()].append(host)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]
