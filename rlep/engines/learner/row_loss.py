"""The loss of one packed row: the paper's equation 4, or the cross-entropy of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rlep.algorithms.loss import LossSums, packed_policy_loss, packed_tokens
from rlep.algorithms.objective import normalizers, regulariser_normalizers
from rlep.config.schema import Config
from rlep.config.training import LossConfig
from rlep.core.types import BoolArray, SequenceBatch
from rlep.engines.learner.packed_row import PackedRow

RowLoss = Callable[[PackedRow, Tensor, Tensor], tuple[Tensor, LossSums]]
"""Row, log-probs ``[R]`` and entropies of its response tokens -> its share of the batch's loss, and what is counted."""
Reference = Callable[[PackedRow], Tensor]
"""Row -> log-probs ``[R]`` of the reference policy, without gradients."""


def policy_loss(
    batch: SequenceBatch, config: Config, high_entropy: BoolArray | None, reference: Reference | None
) -> RowLoss:
    """Equation 4 of a row of ``batch``; ``high_entropy`` ``[R]`` chooses tokens, None takes all."""
    limit = config.rollout.max_tokens
    weights = normalizers(batch, config.loss, fixed_length=limit)  # [S]
    kept = regulariser_normalizers(batch, config.loss, fixed_length=limit)  # [S]

    def loss(row: PackedRow, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, LossSums]:
        with torch.no_grad():
            base = None if reference is None else reference(row)
        chosen = None if high_entropy is None else torch.from_numpy(row.of_responses(high_entropy)).to(logprobs.device)
        values = {"reference_logprobs": base, "entropy": entropy, "high_entropy": chosen}
        values["regulariser_weights"] = None if batch.regularised is None else row.of_sequences(kept)
        part = packed_tokens(row.part, logprobs, row.of_sequences(weights), **values)
        return packed_policy_loss(part, config.loss, config.replay)

    return loss


def cross_entropy(batch: SequenceBatch) -> RowLoss:
    """The mean over all trained response tokens of ``batch``."""
    weights = normalizers(batch, LossConfig())

    def loss(row: PackedRow, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, LossSums]:
        per_token = np.repeat(row.of_sequences(weights), row.part.response_lengths)
        total = -(logprobs.double() * torch.from_numpy(per_token).to(logprobs.device)).sum()
        return total, LossSums.zeros(logprobs.device)

    return loss
