"""CPU acceleration: replacements for parts of torch, transformers and vLLM that compute the same faster on a CPU.

Optional: nothing outside this folder needs it. ``acceleration()`` is its only entrance; ``cluster.cpu_acceleration`` turns it on,
and only the two engine actors and the self-test call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlep.engines.learner.kernels import Kernels
from rlep.engines.sampler.setup import EngineParts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Acceleration:
    """What a learner rank and a generator take instead of the stock parts; names are imported where they are used."""

    kernels: Kernels
    """Learner: fused layers and oneDNN's matrix product."""
    engine: EngineParts
    """Generator: vLLM's scheduler, sampler and environment."""


def acceleration() -> Acceleration:
    """Imports neither torch nor vLLM: a generator sets its environment first."""
    return Acceleration(
        kernels=Kernels(_patch_model, _product),
        engine=EngineParts(
            scheduler="rlep.engines.cpu.scheduling.WholeResponses",
            worker_extension="rlep.engines.cpu.draws.DrawingWorkerExtension",
            start_call="draw_ahead",
            # An update frees the packed matrices of the last one and packs its own: with this their pages stay with the
            # process. An update of 500 M weights takes 1.3 s, and 2.2 s without.
            environment={"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)},
        ),
    )


def _patch_model(model: PreTrainedModel) -> None:
    from rlep.engines.cpu.fused import fuse

    fuse(model)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    from rlep.engines.cpu.products import product

    return product(x, weight)
