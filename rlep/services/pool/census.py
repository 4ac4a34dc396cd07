"""A pool looked into at a bounded cost, however large it is: counters, and some of its questions. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rlep.core.errors import PoolError, RecordRefused
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.storage.codec import decode
from rlep.services.pool.storage.connection import RetryingRedis, connect, until_deadline
from rlep.services.pool.storage.store import Store
from rlep.services.pool.values import DEFAULT_MINIMUM, PoolPlace

QUESTIONS = 1024
"""Questions that a look at a Redis counts."""
LEVELS = (1, 2, 4, 8)
DEADLINE_S = 2.0
"""Longest wait for one answer; an address that is away costs a page this long."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many responses questions have."""

    questions: int
    """All of the pool: with a response now or, where the pool is a Redis, ever."""
    counted: int
    """Those that were looked at."""
    at_least: Mapping[int, int]
    """n → questions among those counted with at least n responses, for n = 1, 2, 4, 8."""
    quarantined: int | None
    """Quarantined responses to those counted; None from a pool server, which does not say."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Counters of a pool."""

    trajectories: int
    bytes: int
    """Size of the stored records."""
    by_policy: Mapping[str, int]
    """``digest@version`` of the policy → trajectories, most first."""
    by_verifier: Mapping[str, int]
    """``name@version`` of the verifier → trajectories, most first."""
    cap: int
    minimum: int | None
    """Responses that a question needs before any is drawn; None where the pool does not say."""
    tokenizer_digest: str
    sealed: str | None
    """The digest of a sealed pool."""
    coverage: Counted


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One response in a pool; None where its record is damaged."""

    content_id: str
    trajectory: Trajectory | None
    quarantined: bool


class PoolCensus(Protocol):
    """What can be asked of a pool, in a Redis or on a pool server. All raise ``PoolError`` or ``DeadlineExceeded``."""

    def counts(self) -> PoolCounts: ...

    def questions(self, most: int) -> list[str]:
        """Some prompt ids, ascending: the same while the pool is."""
        ...

    def responses(self, prompt_ids: Sequence[str]) -> list[int]:
        """How many responses each of these questions has."""
        ...

    def entries(self, prompt_id: str, most: int) -> tuple[list[PoolEntry], int]:
        """At most ``most`` responses to a question, by content id, quarantined ones last; and how many there are."""
        ...


class RedisCensus:
    """Of a pool in a Redis."""

    def __init__(self, link: RetryingRedis, name: str) -> None:
        """Raises ``PoolError`` where there is no such pool."""
        self._store = Store(link, name)
        meta = self._store.meta()
        if meta is None:
            raise PoolError(f"there is no pool {name} in this Redis")
        self._meta = meta

    def counts(self) -> PoolCounts:
        """See ``PoolCensus``."""
        by_policy: dict[str, int] = {}
        by_verifier: dict[str, int] = {}
        labels = self._store.labels()
        for text, label in labels.items():
            policy, _, verifier = text.partition("\n")
            by_policy[policy] = by_policy.get(policy, 0) + label.records
            by_verifier[verifier] = by_verifier.get(verifier, 0) + label.records
        some = self._store.some_prompts(QUESTIONS)[:QUESTIONS]
        held = self._store.counts(some)
        return PoolCounts(
            trajectories=sum(label.records for label in labels.values()),
            bytes=sum(label.bytes for label in labels.values()),
            by_policy=most_first(by_policy),
            by_verifier=most_first(by_verifier),
            cap=self._meta.cap,
            minimum=self._meta.minimum or DEFAULT_MINIMUM,
            tokenizer_digest=self._meta.tokenizer_digest,
            sealed=self._meta.digest,
            coverage=Counted(
                self._store.questions(),
                len(some),
                {level: sum(count >= level for count in held) for level in LEVELS},
                sum(self._store.counts(some, quarantined=True)),
            ),
        )

    def questions(self, most: int) -> list[str]:
        """See ``PoolCensus``."""
        return self._store.some_prompts(most)[:most]

    def responses(self, prompt_ids: Sequence[str]) -> list[int]:
        """See ``PoolCensus``."""
        return self._store.counts(prompt_ids)

    def entries(self, prompt_id: str, most: int) -> tuple[list[PoolEntry], int]:
        """See ``PoolCensus``."""
        held, aside = (self._store.content_ids([prompt_id], quarantined=kind)[0] for kind in (False, True))
        chosen = held[:most], aside[: max(0, most - len(held))]
        found: list[PoolEntry] = []
        for quarantined, ids in zip((False, True), chosen, strict=True):
            blobs = self._store.fetch([(prompt_id, ids)], quarantined=quarantined)
            for content_id, blob in zip(ids, blobs, strict=True):
                if blob is not None:
                    trajectory = _readable(blob, prompt_id)
                    found.append(PoolEntry(content_id.hex(), trajectory, quarantined))
        return found, len(held) + len(aside)


@contextmanager
def redis_census(place: PoolPlace) -> Iterator[RedisCensus]:
    """Of ``place.name`` in the Redis at a URL, or in the embedded one that a process serves now: none is started."""
    with _linked(place) as link:
        yield RedisCensus(link, place.name)


def redis_names(place: PoolPlace) -> list[str]:
    """Names of all pools there, like ``redis_census``."""
    with _linked(place) as link:
        return Store(link, place.name).names()


@contextmanager
def _linked(place: PoolPlace) -> Iterator[RetryingRedis]:
    if place.url is not None:
        url, password_file = place.url, None
    else:
        if not (place.directory / "redis.sock").is_socket():
            raise PoolError(f"no process serves the embedded pool in {place.directory.name}/ now")
        server = EmbeddedRedis(place.directory)  # not started: only where it answers
        url, password_file = server.url, server.password_file
    client = until_deadline(
        "connecting to the pool", lambda: connect(url, password_file=password_file, timeout=1.0), deadline=DEADLINE_S
    )
    try:
        yield RetryingRedis(client, deadline=DEADLINE_S)
    finally:
        client.close()


def most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Those that are not 0, by size."""
    return {name: count for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if count}


def _readable(blob: bytes, prompt_id: str) -> Trajectory | None:
    try:
        return decode(blob, prompt_id)
    except RecordRefused:
        return None
