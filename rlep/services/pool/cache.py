"""Decoded records in memory, so that what is drawn again is neither fetched nor unpacked again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from rlep.services.pool.codec import Sections

DEFAULT_CACHE_BYTES = 1 << 28

_OVERHEAD = 400  # bytes that Python's objects take for one record beside its sections

Key = tuple[int, bytes]
"""The edition of a prompt's records (``Index``) and a content id. What lies under a key never changes: a prompt whose records
changed has a new edition, and what was kept of the old one is not asked for again."""


class RecordCache:
    """At most so many bytes of records, the least recently used let go first. Safe to share between threads and pools."""

    def __init__(self, size: int = DEFAULT_CACHE_BYTES) -> None:
        """``size`` in bytes; 0 keeps nothing."""
        self._size = size
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, Sections] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What it holds now."""
        return self._bytes

    def find(self, keys: Sequence[Key]) -> list[Sections | None]:
        """The record under each key, None where it is not held."""
        held = self._held
        if not held:
            return [None] * len(keys)
        with self._lock:
            found = list(map(held.get, keys))
            for key, sections in zip(keys, found, strict=True):
                if sections is not None:
                    held.move_to_end(key)
        return found

    def keep(self, keys: Sequence[Key], records: Sequence[Sections]) -> None:
        """Hold these from now on, as far as they fit."""
        if not self._size:
            return
        with self._lock:
            for key, sections in zip(keys, records, strict=True):
                size = _size(sections)
                if key in self._held or size > self._size:
                    continue
                self._held[key] = sections
                self._bytes += size
            while self._bytes > self._size:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(sections: Sections) -> int:
    return len(sections.tokens) + len(sections.logprobs) + len(sections.details) + _OVERHEAD
