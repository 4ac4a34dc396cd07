"""Records in memory, so that what is drawn again is not fetched again, and what is drawn often is not unpacked again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from rlep.services.pool.storage.codec import Sections

DEFAULT_CACHE_BYTES = 1 << 28

_OVERHEAD = 400  # bytes that Python's objects take for one record beside its sections

Held = Sections | bytes
"""A record's sections, or the record as it is stored."""
Key = tuple[int, bytes]
"""The edition of a prompt's records (``Index``) and a content id. What lies under a key never changes: a prompt whose records
changed has a new edition, and what was kept of the old one is not asked for again."""


class RecordCache:
    """At most so many bytes of records, the least recently used let go first. Safe to share between threads and pools."""

    def __init__(self, size: int = DEFAULT_CACHE_BYTES) -> None:
        """``size`` in bytes; 0 keeps nothing."""
        self._size = size
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, Held] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What it holds now."""
        return self._bytes

    def find(self, keys: Sequence[Key]) -> list[Held | None]:
        """The record under each key, None where it is not held."""
        held = self._held
        if not held:
            return [None] * len(keys)
        with self._lock:
            found = list(map(held.get, keys))
            for key, record in zip(keys, found, strict=True):
                if record is not None:
                    held.move_to_end(key)
        return found

    def keep(self, keys: Sequence[Key], records: Sequence[Held]) -> None:
        """Hold these from now on, as far as they fit, in place of what lies there."""
        if not self._size:
            return
        with self._lock:
            for key, record in zip(keys, records, strict=True):
                if (old := self._held.pop(key, None)) is not None:
                    self._bytes -= _size(old)
                if (size := _size(record)) <= self._size:
                    self._held[key] = record
                    self._bytes += size
            while self._bytes > self._size:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(record: Held) -> int:
    if isinstance(record, bytes):
        return len(record) + _OVERHEAD
    return len(record.tokens) + len(record.logprobs) + len(record.details) + _OVERHEAD
