"""Drawn records read from Redis, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator

from rlep.core.errors import PoolError
from rlep.services.pool.storage.draw import Drawn
from rlep.services.pool.storage.sample import Stored
from rlep.services.pool.storage.store import Store, Wanted

PROMPTS_A_PART = 64
_RECORDS_A_PART = 256


class RecordsRemoved(Exception):
    """Drawn records were removed since the draw: one number, how many. Draw again."""


def read(store: Store, drawn: Drawn) -> Iterator[Stored]:
    """Parts of at most 64 prompts and, unless it is a single prompt, 256 records. Raises ``RecordsRemoved``."""
    for part in drawn.parts(prompts=PROMPTS_A_PART, records=_RECORDS_A_PART):
        ids = part.ids()
        blobs = store.fetch(list(zip(part.prompt_ids, ids, strict=True)))
        found = [blob for blob in blobs if blob is not None]
        if len(found) < len(blobs):
            raise RecordsRemoved(len(blobs) - len(found))
        yield Stored([content_id for drawn_ids in ids for content_id in drawn_ids], found)


def fetched(store: Store, wanted: Wanted) -> list[Stored]:
    """These records, in this order. Raises ``PoolError`` where one is not there."""
    parts = list[Stored]()
    for start in range(0, len(wanted), PROMPTS_A_PART):
        some = wanted[start : start + PROMPTS_A_PART]
        names = [content_id for _, ids in some for content_id in ids]
        blobs = store.fetch(some)
        found = [blob for blob in blobs if blob is not None]
        if len(found) < len(blobs):
            raise PoolError(
                f"pool {store.name} lacks {len(blobs) - len(found)} of {len(names)} trajectories asked for by name"
            )
        parts.append(Stored(names, found))
    return parts
