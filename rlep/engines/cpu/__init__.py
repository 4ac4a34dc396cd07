"""CPU acceleration: replacements for parts of torch, transformers and vLLM that compute the same faster on a CPU.

Optional: nothing outside this folder needs it. ``acceleration()`` is its only entrance; ``cluster.cpu_acceleration`` turns it on,
and only ``learner_actor`` and ``generator_actor`` call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlep.engines.learner.kernels import Kernels

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Acceleration:
    """What a learner rank and a generator take instead of the stock parts; names are imported where they are used."""

    kernels: Kernels
    """Learner: fused layers and oneDNN's matrix product."""
    scheduler: str
    """Generator: vLLM's ``scheduler_cls``."""
    worker: str
    """Generator: vLLM's ``worker_extension_cls``."""
    start_call: str
    """Generator: method of the worker extension to call once when the engine has started."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Generator: environment variables to set before vLLM is imported."""


def acceleration() -> Acceleration:
    """Imports neither torch nor vLLM: a generator sets its environment first."""
    return Acceleration(
        kernels=Kernels(_patch_model, _product),
        scheduler="rlep.engines.cpu.scheduling.WholeResponses",
        worker="rlep.engines.sampler.vllm_worker.WorkerExtension",
        start_call="draw_ahead",
    )


def _patch_model(model: PreTrainedModel) -> None:
    from rlep.engines.cpu.fused import fuse

    fuse(model)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    from rlep.engines.cpu.products import product

    return product(x, weight)
