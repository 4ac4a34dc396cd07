"""A pool's index in memory: which records a prompt has, and which of them a draw picks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from rlep.algorithms.selection import draw_uniform
from rlep.services.pool.store import Store
from rlep.types import Int32Array


class Index:
    """Prompt id -> its content ids in ascending order, as of the last ``refresh``. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._generations: list[int] = []
        self._ids: dict[str, list[bytes]] = {}
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

    def reset(self) -> None:
        """Forget everything, e.g. when a record of the index was not in the store."""
        with self._lock:
            self._generations, self._ids, self._sealed = [], {}, False

    def _read(self) -> None:
        generations = self._store.generations()
        known = self._generations or [0] * len(generations)
        if any(now < before for now, before in zip(generations, known, strict=True)):
            self._ids, known = {}, [0] * len(generations)  # another pool lies under this name now
        for bucket, (now, before) in enumerate(zip(generations, known, strict=True)):
            if now > before:
                prompts = self._store.changed(bucket, before)
                for prompt_id, ids in zip(prompts, self._store.content_ids(prompts), strict=True):
                    self._ids[prompt_id] = ids
        self._generations = generations

    def draw(
        self, prompt_ids: Sequence[str], count: int, *, minimum: int, seed: int, step: int
    ) -> tuple[Int32Array, list[list[bytes]]]:
        """How many records each prompt gives ``[P]`` and their content ids, uniformly and without replacement.

        A prompt with fewer than ``minimum`` records gives none.
        """
        with self._lock:
            candidates = [self._ids.get(prompt_id, ()) for prompt_id in prompt_ids]
        held = np.fromiter(map(len, candidates), np.int64, len(candidates))
        held[held < minimum] = 0
        indices, offsets = draw_uniform(prompt_ids, held, count, seed=seed, step=step)
        picks, bounds = indices.tolist(), offsets.tolist()
        drawn = [
            [ids[pick] for pick in picks[start:end]]
            for ids, start, end in zip(candidates, bounds, bounds[1:], strict=False)
        ]
        return np.diff(offsets).astype(np.int32), drawn

    def prompt_ids(self) -> list[str]:
        """Prompts with at least one record, ascending."""
        with self._lock:
            return sorted(prompt_id for prompt_id, ids in self._ids.items() if ids)

    def questions_with(self, minimum: int) -> int:
        """How many prompts have at least this many records."""
        with self._lock:
            return sum(len(ids) >= minimum for ids in self._ids.values())

    def content_ids(self, prompt_id: str) -> list[bytes]:
        """Content ids of one prompt, ascending."""
        with self._lock:
            return list(self._ids.get(prompt_id, ()))

    def digest(self) -> str:
        """32 hex digits that name this set of records: a hash of all content ids in ascending order."""
        with self._lock:
            every = [content_id for ids in self._ids.values() for content_id in ids]
        return digest_of(every)


def digest_of(content_ids: Iterable[bytes]) -> str:
    """32 hex digits that name a set of records, in whatever order they come."""
    return hashlib.blake2b(b"".join(sorted(content_ids)), digest_size=16, person=b"rlep.pool").hexdigest()
