"""A pool's index in memory: which records a prompt has, and which of them a draw picks."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from rlep.algorithms.selection import draw_uniform_keyed, prompt_keys
from rlep.services.pool.store import Generation, Store
from rlep.types import Int32Array

_editions = itertools.count(1)


class Held(NamedTuple):
    """The records of one prompt at one time."""

    edition: int
    """A number that no other reading of any prompt has had: what lies under (edition, content id) never changes."""
    ids: list[bytes]
    """Content ids, ascending."""
    key: bytes
    """The prompt's row of ``prompt_keys``."""


class Drawn(NamedTuple):
    """What a draw picked, before any record is read."""

    prompt_ids: Sequence[str]
    """``[P]``"""
    counts: Int32Array
    """``[P]``"""
    ids: list[list[bytes]]
    """``[P]``: content ids."""
    editions: list[int]
    """``[P]``"""

    def parts(self, *, prompts: int, records: int) -> Iterator[Drawn]:
        """The same in parts of at most so many prompts, and of so many records unless it is a single prompt."""
        start = held = 0
        for at, count in enumerate(self.counts.tolist()):
            if at > start and (at - start == prompts or held + count > records):
                yield self._part(start, at)
                start, held = at, 0
            held += count
        if start < len(self.ids):
            yield self._part(start, len(self.ids))

    def _part(self, start: int, end: int) -> Drawn:
        part = slice(start, end)
        return Drawn(self.prompt_ids[part], self.counts[part], self.ids[part], self.editions[part])


_NOTHING = Held(0, [], bytes(16))


class Index:
    """Prompt id -> its content ids in ascending order, as of the last ``refresh``. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._generations: list[Generation] = []
        self._held: dict[str, Held] = {}
        self._sealed = False

    def refresh(self) -> None:
        """Read what changed in the store since the last time: nothing but a number per bucket where nothing did."""
        with self._lock:
            if not self._sealed:
                self._read()

    def freeze(self) -> None:
        """Read one last time: a sealed pool does not change, so that nothing need be asked again."""
        with self._lock:
            self._read()
            self._sealed = True

    def _read(self) -> None:
        generations = self._store.generations()
        known: list[Generation | None] = list(self._generations) or [None] * len(generations)
        changes = [
            [] if before == now else before and self._store.changed(bucket, before, now)
            for bucket, (before, now) in enumerate(zip(known, generations, strict=True))
        ]
        if None in changes:  # the first time, a long time ago, or another history lies under this name now
            self._held, changes = {}, [self._store.all_prompts()]
        prompts, edition = [prompt_id for changed in changes for prompt_id in changed or ()], next(_editions)
        keys = prompt_keys(prompts).tobytes()
        for at, (prompt_id, ids) in enumerate(zip(prompts, self._store.content_ids(prompts), strict=True)):
            self._held[prompt_id] = Held(edition, ids, keys[16 * at : 16 * at + 16])
        self._generations = generations

    def draw(self, prompt_ids: Sequence[str], count: int, *, minimum: int, seed: int, step: int) -> Drawn:
        """Which records each prompt gives, uniformly and without replacement; none below ``minimum`` records."""
        with self._lock:
            known = self._held
            candidates = [known.get(prompt_id, _NOTHING) for prompt_id in prompt_ids]
        editions, lists, keys = map(list, zip(*candidates, strict=True)) if candidates else ([], [], [])
        available = np.fromiter(map(len, lists), np.int64, len(lists))
        available[available < minimum] = 0
        words = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
        indices, offsets = draw_uniform_keyed(words, available, count, seed=seed, step=step)
        counts, picks = np.diff(offsets).astype(np.int32), iter(indices.tolist())
        drawn = [[ids[pick] for pick in islice(picks, n)] for ids, n in zip(lists, counts.tolist(), strict=True)]
        return Drawn(prompt_ids, counts, drawn, editions)

    def prompt_ids(self) -> list[str]:
        """Prompts with at least one record, ascending."""
        with self._lock:
            return sorted(prompt_id for prompt_id, held in self._held.items() if held.ids)

    def questions_with(self, minimum: int) -> int:
        """How many prompts have at least this many records."""
        with self._lock:
            return sum(len(held.ids) >= minimum for held in self._held.values())

    def content_ids(self, prompt_id: str) -> list[bytes]:
        """Content ids of one prompt, ascending."""
        with self._lock:
            return list(self._held.get(prompt_id, _NOTHING).ids)

    def digest(self) -> str:
        """32 hex digits that name this set of records: a hash of all content ids in ascending order."""
        with self._lock:
            every = [content_id for held in self._held.values() for content_id in held.ids]
        return digest_of(every)


def digest_of(content_ids: Iterable[bytes]) -> str:
    """32 hex digits that name a set of records, in whatever order they come."""
    return hashlib.blake2b(b"".join(sorted(content_ids)), digest_size=16, person=b"rlep.pool").hexdigest()
