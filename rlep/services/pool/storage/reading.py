"""Drawn records read, a part at a time: from memory, and what it lacks from Redis."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

from rlep.services.pool.cache import Held, Key, RecordCache
from rlep.services.pool.storage.codec import Sections
from rlep.services.pool.storage.draw import Drawn
from rlep.services.pool.storage.sample import Part, Stored, part_of
from rlep.services.pool.storage.store import Fetching, Store

PROMPTS_A_PART = 64
_RECORDS_A_PART = 256
_PARTS_AHEAD = 3  # what Redis holds ready of them lies in its memory


class RecordsRemoved(Exception):
    """Drawn records are gone: one number, how many. Draw again."""


class _Asked(NamedTuple):
    """A part whose records are on their way."""

    keys: list[Key]
    found: list[Held | None]
    """What was in memory, in the order drawn."""
    answer: Callable[[], list[bytes | None]]
    """Waits for the others."""


class Reader:
    """Reads the records of one pool. Safe to share between threads."""

    def __init__(self, store: Store, cache: RecordCache) -> None:
        self._store, self._cache = store, cache

    def read(self, drawn: Drawn) -> Iterator[Part | Stored]:
        """Parts of at most 64 prompts. Raises ``RecordsRemoved``, and ``RecordRefused``, naming a damaged trajectory.

        A part of which nothing was in memory comes as it is stored: whoever wants its values unpacks it. What the next
        parts lack is asked for before an earlier one is taken apart: Redis works on it meanwhile.
        """
        asked = deque[_Asked]()
        with self._store.fetching() as fetching:
            for part in drawn.parts(prompts=PROMPTS_A_PART, records=_RECORDS_A_PART):
                asked.append(self._ask(part, fetching))
                if len(asked) > _PARTS_AHEAD:
                    yield self._answered(asked.popleft())
            while asked:
                yield self._answered(asked.popleft())

    def _ask(self, part: Drawn, fetching: Fetching) -> _Asked:
        ids = part.ids()
        keys = [key for held, drawn in zip(part.editions, ids, strict=True) for key in zip(repeat(held), drawn)]
        found = self._cache.find(keys)
        if any(found):
            unread = iter(found)
            ids = [[content_id for content_id in drawn if next(unread) is None] for drawn in ids]
        return _Asked(keys, found, fetching.ask(list(zip(part.prompt_ids, ids, strict=True))))

    def _answered(self, asked: _Asked) -> Part | Stored:
        keys, found, answer = asked
        blobs = [blob for blob in answer() if blob is not None]
        missing = [at for at, record in enumerate(found) if record is None]
        if len(blobs) < len(missing):
            raise RecordsRemoved(len(missing) - len(blobs))
        ids = [content_id for _, content_id in keys]
        if len(blobs) == len(keys):
            self._cache.keep(keys, blobs)
            return Stored(ids, blobs)
        fresh = iter(blobs)
        records = [next(fresh) if record is None else record for record in found]
        packed = [at for at, record in enumerate(records) if isinstance(record, bytes)]
        unpacked = Stored([ids[at] for at in packed], [blob for blob in records if isinstance(blob, bytes)]).sections()
        self._cache.keep([keys[at] for at in packed], unpacked)
        for at, sections in zip(packed, unpacked, strict=True):
            records[at] = sections
        return part_of(ids, [record for record in records if isinstance(record, Sections)])
