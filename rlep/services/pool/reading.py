"""Drawn records read, a part at a time: from memory, and what it lacks from Redis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from rlep.services.pool.cache import RecordCache
from rlep.services.pool.codec import Sections
from rlep.services.pool.draw import Drawn
from rlep.services.pool.sample import unpacked
from rlep.services.pool.store import Store

PROMPTS_A_PART = 64
_RECORDS_A_PART = 256


class RecordsRemoved(Exception):
    """Drawn records are gone: one number, how many. Draw again."""


class Part(NamedTuple):
    """Some of the drawn records, in the order drawn."""

    ids: list[bytes]
    """Content ids."""
    records: list[Sections]


class Reader:
    """Reads the records of one pool. Safe to share between threads."""

    def __init__(self, store: Store, cache: RecordCache) -> None:
        self._store, self._cache = store, cache

    def read(self, drawn: Drawn) -> Iterator[Part]:
        """Parts of at most 64 prompts. Raises ``RecordsRemoved``, and ``RecordRefused``, naming a damaged trajectory."""
        return map(self._part, drawn.parts(prompts=PROMPTS_A_PART, records=_RECORDS_A_PART))

    def _part(self, part: Drawn) -> Part:
        keys = [key for held, ids in zip(part.editions, part.ids, strict=True) for key in zip(repeat(held), ids)]
        found = self._cache.find(keys)
        missing = [at for at, record in enumerate(found) if record is None]
        if missing:
            unread = iter(found)
            wanted = [
                (prompt_id, [content_id for content_id in ids if next(unread) is None])
                for prompt_id, ids in zip(part.prompt_ids, part.ids, strict=True)
            ]
            blobs = [blob for blob in self._store.fetch(wanted) if blob is not None]
            if len(blobs) < len(missing):
                raise RecordsRemoved(len(missing) - len(blobs))
            records = unpacked([keys[at][1] for at in missing], blobs)
            self._cache.keep(zip([keys[at] for at in missing], records, strict=True))
            for at, record in zip(missing, records, strict=True):
                found[at] = record
        return Part([content_id for _, content_id in keys], [record for record in found if record is not None])
