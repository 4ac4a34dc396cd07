"""From sequences of a batch to one packed row of tensors, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlep.algorithms.packing import plain_batch, spans, take
from rlep.core.types import Int64Array, SequenceBatch, Value
from rlep.engines.learner.attention import Layout, layout_of


@dataclass(frozen=True, slots=True, eq=False)
class PackedRow:
    """Some sequences of a batch, longest first, laid end to end: N tokens, of which the policy sampled R."""

    part: SequenceBatch
    """The same sequences in the same order."""
    tokens: Tensor
    """int64 ``[N]``"""
    layout: Layout
    predictors: Tensor
    """The row's token whose output predicts each sampled token, int64 ``[R]``."""
    targets: Tensor
    """The sampled tokens, int64 ``[R]``."""
    sequences: Int64Array
    """Places of the sequences in the batch, ``[S]``; empty in a filler row."""
    responses: Int64Array
    """Places of the sampled tokens in the batch's per-token arrays, ``[R]``; empty in a filler row."""

    def of_sequences(self, values: NDArray[Value]) -> NDArray[Value]:
        """This row's entries of a per-sequence array of the batch; a zero in a filler row."""
        return values[self.sequences] if len(self.sequences) else np.zeros(1, dtype=values.dtype)

    def of_responses(self, values: NDArray[Value]) -> NDArray[Value]:
        """This row's entries of a per-token array of the batch; a zero in a filler row."""
        return values[self.responses] if len(self.sequences) else np.zeros(1, dtype=values.dtype)


def pack_row(batch: SequenceBatch, sequences: Int64Array, device: torch.device) -> PackedRow:
    """The chosen sequences as one row, longest first (ties in the batch's order).

    Without any sequence the row is a filler: two tokens outside every loss, with which a rank that has nothing to do
    takes part in the others' collectives and adds exactly nothing.
    """
    lengths = np.diff(batch.offsets)
    chosen = np.sort(sequences)
    chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
    part = take(batch, chosen) if len(chosen) else _filler()
    part_lengths = np.diff(part.offsets)
    # The last token of the prompt predicts the first of the response, and the response's last one predicts nothing.
    if part.sampled is None:
        predictors = spans(part.offsets[:-1] + part.prompt_lengths - 1, part.sampled_lengths)
    else:
        predictors = np.flatnonzero(part.sampled) - 1
    tokens = part.tokens.astype(np.int64)
    lengths = batch.sampled_lengths
    ends = np.cumsum(lengths)[chosen]
    return PackedRow(
        part=part,
        tokens=torch.from_numpy(tokens).to(device),
        layout=layout_of(part_lengths, device),
        predictors=torch.from_numpy(predictors).to(device),
        targets=torch.from_numpy(tokens[predictors + 1]).to(device),
        sequences=chosen,
        responses=spans(ends - lengths[chosen], lengths[chosen]),
    )


def _filler() -> SequenceBatch:
    nothing = np.zeros(1, dtype=np.float32)
    untrained = np.zeros(1, dtype=np.bool_)
    return replace(plain_batch([0, 0], [2], [1]), trained=untrained, old_logprobs=nothing, behaviour_logprobs=nothing)


def largest_update(ranks: int, micro_batch_tokens: int, longest: int, micro_batches: int = 3) -> SequenceBatch:
    """The update that needs the most memory: full micro-batches for every rank, for a rehearsal before the first rollout.

    Of three the second is computed while the first one's gradients are held, and ends with the gathered weights still there
    for the third: no update needs more. Sequences have ``longest`` tokens, nearly all of them response, with a shorter one
    where another does not fit. Advantages are zero, and every log-prob that a loss may ask for is there.
    """
    each = [longest] * max(1, micro_batch_tokens // longest)
    rest = micro_batch_tokens - sum(each)
    lengths = np.array((each + [rest] * (rest > 1)) * (micro_batches * ranks), dtype=np.int64)
    batch = plain_batch(np.zeros(lengths.sum()), lengths, np.ones_like(lengths))
    logprobs = np.zeros(batch.sampled_lengths.sum(), dtype=np.float32)
    return replace(batch, old_logprobs=logprobs, behaviour_logprobs=logprobs)
