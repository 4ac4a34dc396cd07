"""Start-of-step weights: those before a rollout's first update, with which its later mini-batches are scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlep.core.errors import UpdateError


class StartWeights:
    """One rank's shards as they were before a rollout's first update; copied only if that update keeps them."""

    def __init__(self, shards: Sequence[tuple[str, DTensor]]) -> None:
        self._locals = [shard.to_local().detach() for _, shard in shards]
        self._rollout: int | None = None
        self._copies: list[Tensor] | None = None

    def updating(self, rollout: int, *, keep: bool) -> None:
        """Announce that an update of ``rollout`` will change the weights; ``keep`` copies them if it is the rollout's first."""
        if rollout != self._rollout:
            self._rollout = rollout
            self._copies = [local.clone() for local in self._locals] if keep else None

    def forget(self) -> None:
        """Drop the copies: the present weights are the start of the next step."""
        self._rollout = self._copies = None

    @property
    def copies(self) -> list[Tensor]:
        """The start-of-step weights, while there are any."""
        return self._copies or []

    @contextmanager
    def at_start_of(self, rollout: int | None) -> Iterator[None]:
        """Within the block the weights are those before the first update of ``rollout``, to the bit; None: the present ones.

        Raises:
            UpdateError: the rollout was updated on and its first weights were not kept.
        """
        if rollout is None or rollout != self._rollout:
            yield
            return
        if self._copies is None:
            raise UpdateError(f"rollout {rollout} has been updated on and the weights before that were not kept")
        self._swap(self._copies)
        try:
            yield
        finally:
            self._swap(self._copies)

    def _swap(self, copies: list[Tensor]) -> None:
        with torch.no_grad():
            for local, copy in zip(self._locals, copies, strict=True):
                # Three copies of one tensor at a time, never of all: the present weights and the kept ones change places.
                present = local.clone()
                local.copy_(copy)
                copy.copy_(present)
