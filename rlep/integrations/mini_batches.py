"""Mini-batches of a verl step with replays: they keep the number of optimizer updates that verl is configured for.

verl counts ``ppo_mini_batch_size`` in prompts, but cuts mini-batches of ``ppo_mini_batch_size · n`` rows. With M replays a prompt
has n + M rows, so that 512 · 18 rows in mini-batches of 64 · 16 are nine updates instead of eight; those of 72 · 16 are eight.
"""

from __future__ import annotations

from typing import NamedTuple


class Cut(NamedTuple):
    """The mini-batches of one step."""

    size: int
    """The step's ``ppo_mini_batch_size``."""
    rows: int
    """Of the whole step, those included that pad it."""


def cut(rows: int, updates: int, *, size: int, n: int, multiple: int = 1, whole: int = 1) -> Cut:
    """The smallest mini-batches, none below the configured ones, in which ``updates`` of them hold all rows.

    Args:
        rows: of the step, fresh ones and replays.
        updates: of the optimizer in a step.
        size: ``ppo_mini_batch_size`` as configured.
        n: ``rollout.n``; a mini-batch has a multiple of it.
        multiple: a mini-batch's rows are a multiple of this: ranks, times rows of a micro-batch.
        whole: the step's rows are a multiple of this.
    """
    size = max(size, -(-rows // (updates * n)))
    while size * n % multiple or updates * size * n % whole:
        size += 1
    return Cut(size, updates * size * n)
