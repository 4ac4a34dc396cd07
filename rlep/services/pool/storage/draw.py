"""A pool's index in memory: which records a prompt has, and which of them a draw picks."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlep.core.draws import draw_uniform_keyed, prompt_keys
from rlep.core.types import Int32Array, Int64Array

if TYPE_CHECKING:  # the client has no redis
    from rlep.services.pool.storage.store import Generation, Store

_ID_BYTES = 16


class Drawn(NamedTuple):
    """Picks of a draw, before any record is read."""

    prompt_ids: Sequence[str]
    """``[P]``"""
    counts: Int32Array
    """``[P]``"""
    picks: Int64Array
    """``[K]``: which of its prompt's records each is."""
    held: list[bytes]
    """``[P]``: the content ids of all of a prompt's records, 16 bytes each."""
    minimum: int = 1
    """A prompt with fewer records gave none."""

    @property
    def available(self) -> Int32Array:
        """``[P]``: how many records each prompt has."""
        return np.array([len(ids) // _ID_BYTES for ids in self.held], np.int32)

    def ids(self) -> list[list[bytes]]:
        """``[P]``: content ids of the records picked."""
        starts = iter((_ID_BYTES * self.picks).tolist())
        return [
            [held[start : start + _ID_BYTES] for start in islice(starts, count)]
            for held, count in zip(self.held, self.counts.tolist(), strict=True)
        ]

    def parts(self, *, prompts: int, records: int) -> Iterator[Drawn]:
        """The same in parts of at most so many prompts, and of so many records unless it is a single prompt."""
        start = first = end = 0
        for at, count in enumerate(self.counts.tolist()):
            if at > start and (at - start == prompts or end - first + count > records):
                yield self._part(slice(start, at), slice(first, end))
                start, first = at, end
            end += count
        if start < len(self.held):
            yield self._part(slice(start, None), slice(first, end))

    def _part(self, part: slice, records: slice) -> Drawn:
        return Drawn(self.prompt_ids[part], self.counts[part], self.picks[records], self.held[part], self.minimum)


class _Rows:
    """Numbers of each prompt, a row each; row 0 is of every prompt that is not known."""

    def __init__(self) -> None:
        self.row_of: dict[str, int] = {}
        self.held = [b""]
        self.counts = np.zeros(1, np.int64)
        self.keys = np.zeros((1, 2), np.uint64)

    def put(self, prompt_ids: Sequence[str], ids: Sequence[Sequence[bytes]]) -> None:
        """Note the content ids of these prompts, ascending. A field that is not a content id is never drawn."""
        new = [prompt_id for prompt_id in prompt_ids if prompt_id not in self.row_of]
        self.row_of.update(zip(new, itertools.count(len(self.held)), strict=False))
        self.held += [b""] * len(new)
        self.counts = np.append(self.counts, np.zeros(len(new), np.int64))
        self.keys = np.concatenate([self.keys, prompt_keys(new)])
        rows = [self.row_of[prompt_id] for prompt_id in prompt_ids]
        for row, found in zip(rows, ids, strict=True):
            self.held[row] = b"".join([content_id for content_id in found if len(content_id) == _ID_BYTES])
        self.counts[rows] = [len(self.held[row]) // _ID_BYTES for row in rows]


class Index:
    """Prompt id -> its content ids in ascending order, as of the last ``refresh``. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._generation: Generation | None = None
        self._rows = _Rows()
        self._sealed = False

    def refresh(self) -> None:
        """Read what changed in the store since the last time: nothing but a number where nothing did."""
        with self._lock:
            if not self._sealed:
                self._read()

    def freeze(self) -> None:
        """Read one last time: a sealed pool does not change, so that nothing need be asked again."""
        with self._lock:
            self._read()
            self._sealed = True

    def _read(self) -> None:
        known, now = self._generation, self._store.generation()
        if known == now:
            return
        changed = None if known is None else self._store.changed(known, now)
        # None: the first time, a long time ago, or another history lies under this name now.
        prompts = self._store.all_prompts() if changed is None else changed
        ids = self._store.content_ids(prompts)
        if changed is None:
            self._rows = _Rows()
        if prompts:
            self._rows.put(prompts, ids)
        self._generation = now

    def draw(self, prompt_ids: Sequence[str], count: int, *, minimum: int, seed: int, step: int) -> Drawn:
        """Draw the records of each prompt, uniformly and without replacement; none below ``minimum`` records."""
        with self._lock:
            known, row_of = self._rows, self._rows.row_of
            rows = [row_of.get(prompt_id, 0) for prompt_id in prompt_ids]
            at = np.array(rows, np.intp)
            available, keys = known.counts[at], known.keys[at]
            held = [known.held[row] for row in rows]
        available[available < minimum] = 0
        picks, offsets = draw_uniform_keyed(keys, available, count, seed=seed, step=step)
        return Drawn(prompt_ids, np.diff(offsets).astype(np.int32), picks, held, minimum)

    def prompt_ids(self) -> list[str]:
        """Prompts with at least one record, ascending."""
        with self._lock:
            return sorted(prompt_id for prompt_id, row in self._rows.row_of.items() if self._rows.held[row])

    def questions_with(self, minimum: int) -> int:
        """Count the prompts that have at least this many records."""
        with self._lock:
            return int((self._rows.counts[1:] >= minimum).sum())

    def most(self) -> int:
        """Records of the prompt that has most of them."""
        with self._lock:
            return int(self._rows.counts.max())

    def content_ids(self, prompt_id: str) -> list[bytes]:
        """Content ids of one prompt, ascending."""
        with self._lock:
            return _divided(self._rows.held[self._rows.row_of.get(prompt_id, 0)])

    def digest(self) -> str:
        """32 hex digits that name this set of records: a hash of all content ids in ascending order."""
        with self._lock:
            every = b"".join(self._rows.held)
        return digest_of(_divided(every))


def _divided(ids: bytes) -> list[bytes]:
    return [ids[start : start + _ID_BYTES] for start in range(0, len(ids), _ID_BYTES)]


def digest_of(content_ids: Iterable[bytes]) -> str:
    """32 hex digits that name a set of records, in whatever order they come."""
    return hashlib.blake2b(b"".join(sorted(content_ids)), digest_size=16, person=b"rlep.pool").hexdigest()
