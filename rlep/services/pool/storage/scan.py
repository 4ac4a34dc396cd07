"""A pool's records one after the other, prompt by prompt, with a bounded number of them in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rlep.core.errors import RecordRefused
from rlep.core.types import Trajectory
from rlep.services.pool.storage.codec import decode

if TYPE_CHECKING:  # the client has no redis
    from rlep.services.pool.storage.store import Store

_PROMPTS = 64
"""Prompts whose content ids are asked for at once."""
_RECORDS = 128
"""Records that are read at once."""


class Held(NamedTuple):
    """One record and where it lies."""

    prompt_id: str
    content_id: bytes
    record: bytes
    quarantined: bool

    @property
    def place(self) -> str:
        """Where a scan goes on after this record: no prompt id has a slash."""
        return f"{self.prompt_id}/{_within(self.content_id, self.quarantined)}"


def scan(store: Store, prompt_ids: Sequence[str], *, quarantined: bool = False, after: str = "") -> Iterator[Held]:
    """The records of these prompts, which ascend: each prompt's together and ascending, with ``quarantined`` then its others.

    It begins behind ``after``, a prompt id or a ``Held.place``, whether or not that is still there. A pool that is written
    to meanwhile may be seen with or without what changes; a record that goes is left out.
    """
    first, _, done = after.partition("/")
    # At the prompt where a place within it is given, else behind all of it.
    begin = bisect_left(prompt_ids, first) if done else bisect_right(prompt_ids, first)
    for start in range(begin, len(prompt_ids), _PROMPTS):
        chunk = prompt_ids[start : start + _PROMPTS]
        held = store.content_ids(chunk)
        aside = store.content_ids(chunk, quarantined=True) if quarantined else [[] for _ in chunk]
        places = [
            (prompt_id, content_id, kind)
            for prompt_id, records, others in zip(chunk, held, aside, strict=True)
            for kind, ids in ((False, records), (True, others))
            for content_id in ids
            if not done or prompt_id != first or _within(content_id, kind) > done
        ]
        for at in range(0, len(places), _RECORDS):
            yield from _read(store, places[at : at + _RECORDS])


def _within(content_id: bytes, quarantined: bool) -> str:
    """A record's place among those of its prompt, in the order of a scan."""
    return f"{'x' if quarantined else 'q'}{content_id.hex()}"


def trajectory_of(held: Held) -> Trajectory:
    """The trajectory in a record. Raises ``RecordRefused``, naming the record, where it is damaged."""
    content_id = held.content_id.hex()
    try:
        trajectory = decode(held.record, held.prompt_id)
        if trajectory.content_id != content_id:
            raise RecordRefused(f"the stored tokens have id {trajectory.content_id}")
    except RecordRefused as error:
        raise RecordRefused(f"trajectory {content_id} of prompt {held.prompt_id}: {error}") from None
    return trajectory


def _read(store: Store, places: Sequence[tuple[str, bytes, bool]]) -> Iterator[Held]:
    # A prompt's two kinds have keys of their own, so each kind is one command a prompt.
    blobs = {}
    for quarantined in (False, True):
        of_kind = groupby((place for place in places if place[2] == quarantined), key=lambda place: place[0])
        wanted = [(prompt_id, [content_id for _, content_id, _ in group]) for prompt_id, group in of_kind]
        blobs[quarantined] = iter(store.fetch(wanted, quarantined=quarantined))
    for prompt_id, content_id, kind in places:
        blob = next(blobs[kind])
        if blob is not None:
            yield Held(prompt_id, content_id, blob, kind)
