"""Stored trajectories by name: fetched, listed and removed by their content ids, for whoever keeps an index of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from rlep.core.errors import PoolError
from rlep.services.pool.pool import Pool, raw_id
from rlep.services.pool.storage.reading import PROMPTS_A_PART
from rlep.services.pool.storage.sample import Part, Sample, Stored, columns

Named = Mapping[str, Sequence[str]]
"""Prompt id → content ids, 32 hex digits each."""


def fetch(pool: Pool, wanted: Named) -> Sample:
    """These trajectories, in this order. Raises ``PoolError`` where one is not there, ``RecordRefused`` for a damaged one."""
    parts: list[Part] = []
    prompts = iter(wanted.items())
    while part := [(prompt_id, [raw_id(one) for one in ids]) for prompt_id, ids in islice(prompts, PROMPTS_A_PART)]:
        names = [one for _, ids in part for one in ids]
        blobs = [blob for blob in pool.store.fetch(part) if blob is not None]
        if len(blobs) < len(names):
            raise PoolError(
                f"pool {pool.name} lacks {len(names) - len(blobs)} of {len(names)} trajectories asked for by name"
            )
        parts.append(Stored(names, blobs).part())
    counts = np.array([len(ids) for ids in wanted.values()], np.int32)
    return columns([*wanted], counts, parts, (counts, 0)).checked(pool.vocabulary)


def contents(pool: Pool) -> dict[str, list[str]]:
    """Content ids of all that the pool holds, ascending, of each prompt that has any."""
    prompts = pool.store.all_prompts()
    held = zip(prompts, pool.store.content_ids(prompts), strict=True)
    return {prompt_id: [one.hex() for one in ids] for prompt_id, ids in held if ids}


def remove(pool: Pool, gone: Named) -> int:
    """Take these out of the pool; how many were there."""
    return sum(pool.remove(prompt_id, ids) for prompt_id, ids in gone.items())
