"""Runs inside vLLM's worker: one that is killed in the middle of its next weight transfer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

from torch import Tensor

from rlep.engines.sampler.vllm_worker import WorkerExtension

TAKEN = 2
"""Weights that arrive before the end."""


class DyingWorkerExtension(WorkerExtension):
    """Class that vLLM mixes into a worker that is to die."""

    def abandon_weight_update(self) -> None:
        """Before a transfer, arrange that the kernel kills this process after some of its weights."""
        super().abandon_weight_update()
        model = self.weight_transfer_engine.model
        load = model.load_weights
        model.load_weights = lambda weights: load(_cut(weights))


def _cut(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for number, weight in enumerate(weights):
        if number == TAKEN:
            os.kill(os.getpid(), signal.SIGKILL)
        yield weight
