"""Mini-batches of a verl step with replays: they keep the number of optimizer updates that verl is configured for.

verl counts ``ppo_mini_batch_size`` in prompts, but cuts mini-batches of ``ppo_mini_batch_size · n`` rows, as they come. With
M replays a prompt has n + M rows, so that 512 · 18 rows in mini-batches of 64 · 16 are nine updates instead of eight; those of
72 · 16 are eight. Each has its share of the groups, whole, and is filled up with padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise


def shared(groups: Sequence[Sequence[int]], updates: int) -> list[list[int]]:
    """The rows of each update: as many groups as of each other, in their order. Fewer groups than updates are an update each."""
    updates = min(updates, len(groups))
    ends = [len(groups) * update // updates for update in range(updates + 1)]
    return [[row for group in groups[start:end] for row in group] for start, end in pairwise(ends)]


def cut(rows: int, updates: int, *, size: int, n: int, multiple: int = 1, whole: int = 1) -> int:
    """The step's ``ppo_mini_batch_size``: the smallest that holds the rows of every update, and not below the configured one.

    Args:
        rows: of the update that has most, fresh ones and replays.
        updates: of the optimizer in a step.
        size: ``ppo_mini_batch_size`` as configured.
        n: ``rollout.n``; a mini-batch has a multiple of it.
        multiple: a mini-batch's rows are a multiple of this: ranks, times rows of a micro-batch.
        whole: the step's rows are a multiple of this.
    """
    size = max(size, -(-rows // n))
    while size * n % multiple or updates * size * n % whole:
        size += 1
    return size


def padded(updates: Sequence[Sequence[int]], rows: int) -> list[int]:
    """The order of a batch whose updates have so many rows each; those behind their own, at the batch's end, pad them."""
    padding = iter(range(sum(map(len, updates)), len(updates) * rows))
    return [row for update in updates for row in (*update, *islice(padding, rows - len(update)))]
