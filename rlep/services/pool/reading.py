"""Drawn records read: what memory holds at once, the rest from Redis, a part ahead of whoever works on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from typing import NamedTuple

from rlep.services.pool.cache import Key, RecordCache
from rlep.services.pool.codec import Sections
from rlep.services.pool.draw import Drawn
from rlep.services.pool.sample import unpacked
from rlep.services.pool.store import Store

PROMPTS_A_PART = 64
_RECORDS_A_PART = 256
_FETCHES = 8  # threads; each mostly waits for Redis


class RecordsRemoved(Exception):
    """Drawn records are gone: one number, how many. Draw again."""


class Part(NamedTuple):
    """Some of the drawn records, in the order drawn."""

    ids: list[bytes]
    """Content ids."""
    records: list[Sections]


class _Begun(NamedTuple):
    """A part of which something may still be on its way."""

    keys: list[Key]
    found: list[Sections | None]
    fetched: Future[list[bytes | None]] | None


class Reader:
    """Reads the records of one pool. Safe to share between threads."""

    def __init__(self, store: Store, cache: RecordCache) -> None:
        self._store, self._cache = store, cache
        self._threads = ThreadPoolExecutor(_FETCHES, thread_name_prefix="pool-fetch")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def read(self, drawn: Drawn) -> Iterator[Part]:
        """Parts of at most 64 prompts. Raises ``RecordsRemoved``, and ``RecordRefused``, naming a damaged trajectory."""
        begun: deque[_Begun] = deque()
        for part in drawn.parts(prompts=PROMPTS_A_PART, records=_RECORDS_A_PART):
            begun.append(self._begin(part))
            if len(begun) > 1:
                yield self._finish(begun.popleft())
        while begun:
            yield self._finish(begun.popleft())

    def _begin(self, part: Drawn) -> _Begun:
        keys = [key for held, ids in zip(part.editions, part.ids, strict=True) for key in zip(repeat(held), ids)]
        found = self._cache.find(keys)
        if None not in found:
            return _Begun(keys, found, None)
        unread = iter(found)
        wanted = [
            (prompt_id, [content_id for content_id in ids if next(unread) is None])
            for prompt_id, ids in zip(part.prompt_ids, part.ids, strict=True)
        ]
        return _Begun(keys, found, self._threads.submit(self._store.fetch, wanted))

    def _finish(self, part: _Begun) -> Part:
        keys, found, fetched = part
        if fetched is not None:
            missing = [at for at, record in enumerate(found) if record is None]
            blobs = [blob for blob in fetched.result() if blob is not None]
            if len(blobs) < len(missing):
                raise RecordsRemoved(len(missing) - len(blobs))
            records = unpacked([keys[at][1] for at in missing], blobs)
            self._cache.keep(zip([keys[at] for at in missing], records, strict=True))
            for at, record in zip(missing, records, strict=True):
                found[at] = record
        return Part([content_id for _, content_id in keys], [record for record in found if record is not None])
