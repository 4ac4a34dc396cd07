"""A pool looked into for a page, wherever it is, at a bounded cost and without writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlep.core.errors import PoolError, RecordRefused
from rlep.core.types import Trajectory
from rlep.services.pool.rpc.places import SOCKET, connected
from rlep.services.pool.storage.scan import Held, trajectory_of
from rlep.services.pool.values import PoolPlace, PoolStats

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

DEADLINE_S = 2.0
"""Longest wait for one answer; an address that is away costs a page this long."""


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One response in a pool; None where its record is damaged."""

    content_id: str
    trajectory: Trajectory | None
    quarantined: bool


@contextmanager
def served_client(place: PoolPlace) -> Iterator[PoolClient]:
    """A client of ``place.name`` there; no server is started. Raises ``ConfigError``, ``PoolError`` or ``DeadlineExceeded``."""
    if place.url is None and not (place.directory / SOCKET).is_socket():
        raise PoolError(f"no process serves the embedded pool in {place.directory.name}/ now")
    with connected(place, deadline=DEADLINE_S) as client:
        yield client


def pool_names(place: PoolPlace) -> list[str]:
    """Names of all pools there. Raises like ``served_client``."""
    with served_client(place) as client:
        return client.names()


def stats_of(client: PoolClient) -> PoolStats:
    """The pool's statistics. Raises ``PoolError`` where nobody has added to it, or ``DeadlineExceeded``."""
    stats = client.stats()
    if not stats.tokenizer_digest:
        raise PoolError("there is no such pool")
    return stats


def response_counts(client: PoolClient, prompt_ids: Sequence[str]) -> list[int]:
    """Count the responses of each of these questions."""
    return list(map(len, client.contents(prompt_ids).values()))


def entries_of_prompt(client: PoolClient, prompt_id: str, most: int) -> tuple[list[PoolEntry], int]:
    """At most ``most`` responses to a question, by content id, quarantined ones last; and how many there are."""
    total = sum(len(client.contents([prompt_id], quarantined=kind)[prompt_id]) for kind in (False, True))
    records = client.records([prompt_id], quarantined=True, limit=most)
    return [PoolEntry(held.content_id.hex(), _readable(held), held.quarantined) for held in records], total


def _readable(held: Held) -> Trajectory | None:
    try:
        return trajectory_of(held)
    except RecordRefused:
        return None
