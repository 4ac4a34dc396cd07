"""A pool's records one after the other, prompt by prompt, with a bounded number of them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rlep.core.errors import RecordRefused
from rlep.core.types import Trajectory
from rlep.services.pool.storage.codec import decode
from rlep.services.pool.storage.store import Store

_PROMPTS = 256
"""Prompts whose content ids are asked for at once."""
_RECORDS = 128
"""Records that are read at once."""


class Held(NamedTuple):
    """One record and where it lies."""

    prompt_id: str
    content_id: bytes
    record: bytes
    quarantined: bool


def scan(store: Store, prompt_ids: Sequence[str], *, quarantined: bool = False) -> Iterator[Held]:
    """The records of these prompts, each prompt's together and ascending; with ``quarantined`` its quarantined ones too.

    A pool that is written to meanwhile may be seen with or without what changes; a record that goes is left out.
    """
    for start in range(0, len(prompt_ids), _PROMPTS):
        chunk = prompt_ids[start : start + _PROMPTS]
        held = store.content_ids(chunk)
        aside = store.content_ids(chunk, quarantined=True) if quarantined else [[] for _ in chunk]
        places = [
            (prompt_id, content_id, kind)
            for prompt_id, records, others in zip(chunk, held, aside, strict=True)
            for kind, ids in ((False, records), (True, others))
            for content_id in ids
        ]
        for at in range(0, len(places), _RECORDS):
            yield from _read(store, places[at : at + _RECORDS])


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
    blobs = {}
    for quarantined in (False, True):
        of_kind = groupby((place for place in places if place[2] == quarantined), key=lambda place: place[0])
        wanted = [(prompt_id, [content_id for _, content_id, _ in group]) for prompt_id, group in of_kind]
        blobs[quarantined] = iter(store.fetch(wanted, quarantined=quarantined))
    for prompt_id, content_id, kind in places:
        blob = next(blobs[kind])
        if blob is not None:
            yield Held(prompt_id, content_id, blob, kind)


def find(store: Store, identity: str) -> list[Held]:
    """All records of the prompt, or the one trajectory, of this id, quarantined or not; empty where there is none."""
    if of_prompt := list(scan(store, [identity], quarantined=True)):
        return of_prompt
    try:
        wanted = bytes.fromhex(identity)
    except ValueError:
        return []
    prompts = store.all_prompts()
    for kind in (False, True):
        for prompt_id, ids in zip(prompts, store.content_ids(prompts, quarantined=kind), strict=True):
            if wanted in ids:
                (blob,) = store.fetch([(prompt_id, [wanted])], quarantined=kind)
                return [] if blob is None else [Held(prompt_id, wanted, blob, kind)]
    return []
