"""What may stand in for a model's own forward functions and torch's matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Kernels:
    """Replacements that compute the same in float32 on a CPU."""

    patch_model: Callable[[PreTrainedModel], None]
    """Replaces forward functions of a model's modules; parameters and their names stay."""
    product: Callable[[Tensor, Tensor], Tensor]
    """``x [N, d], weight [o, d] -> x @ weight.T``, without a gradient."""
