"""The update that needs the most memory of all that the options allow, for a rehearsal before the first rollout."""

from __future__ import annotations

import numpy as np

from rlep.core.types import SequenceBatch


def largest_update(ranks: int, micro_batch_tokens: int, longest: int, micro_batches: int = 3) -> SequenceBatch:
    """So many full micro-batches for every rank.

    Of three the second is computed while the first one's gradients are held, and ends with the gathered weights still there
    for the third: no update needs more. Sequences have ``longest`` tokens, nearly all of them response, with a shorter one
    where another does not fit. Advantages are zero.
    """
    each = [longest] * max(1, micro_batch_tokens // longest)
    rest = micro_batch_tokens - sum(each)
    lengths = np.array((each + [rest] * (rest > 1)) * (micro_batches * ranks), dtype=np.int64)
    count = len(lengths)
    return SequenceBatch(
        tokens=np.zeros(lengths.sum(), dtype=np.int32),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        prompt_lengths=np.ones(count, dtype=np.int32),
        advantages=np.zeros(count, dtype=np.float32),
        trained=np.ones(count, dtype=np.bool_),
        groups=np.arange(count, dtype=np.int32),
        replayed=np.zeros(count, dtype=np.bool_),
        old_logprobs=np.zeros(lengths.sum() - count, dtype=np.float32),
    )
