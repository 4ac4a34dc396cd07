"""Rows of episodes: the head is computed where the policy sampled the next token, and nowhere else."""

from dataclasses import replace

import numpy as np
import torch

from rlep.algorithms.packing import plain_batch
from rlep.core.types import BoolArray, SequenceBatch
from rlep.engines.learner.packed_row import PackedRow, pack_row


def batch_of(sampled: BoolArray | None) -> SequenceBatch:
    """Two sequences of 2 + 3 and 1 + 5 tokens, numbered from 0."""
    return replace(plain_batch(np.arange(11), [5, 6], [2, 1]), sampled=sampled)


def row_of(batch: SequenceBatch, *sequences: int) -> PackedRow:
    return pack_row(batch, np.array(sequences), torch.device("cpu"))


def test_predictors_and_targets_are_at_sampled_places() -> None:
    # Of the first response its last token is an answer to what the environment wrote; of the second so are two turns.
    mask = np.array([0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1], np.bool_)
    row = row_of(batch_of(mask), 0, 1)
    assert row.tokens.tolist() == [5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4]  # the longer one first; every token is context
    assert row.targets.tolist() == [6, 7, 10, 2, 4]
    assert row.predictors.tolist() == [0, 1, 4, 7, 9]
    assert row.responses.tolist() == [2, 3, 4, 0, 1]  # places among the five per-token values of the batch
    assert row_of(batch_of(mask), 1).responses.tolist() == [2, 3, 4]


def test_a_mask_that_leaves_nothing_out_is_the_same_row() -> None:
    whole = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1], np.bool_)
    plain, masked = row_of(batch_of(None), 0, 1), row_of(batch_of(whole), 0, 1)
    for name in ("tokens", "predictors", "targets"):
        assert torch.equal(getattr(plain, name), getattr(masked, name))
        assert getattr(plain, name).dtype == getattr(masked, name).dtype
    assert plain.responses.tolist() == masked.responses.tolist()
