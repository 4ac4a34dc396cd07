"""A pool looked into, wherever it is: in a Redis, an embedded one that is served, or on a pool server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlep.core.errors import RecordRefused
from rlep.services.pool.census import (
    DEADLINE_S,
    Counted,
    PoolCensus,
    PoolCounts,
    PoolEntry,
    most_first,
    redis_census,
    redis_names,
)
from rlep.services.pool.rpc.run_pool import connected, on_server
from rlep.services.pool.values import PoolOptions, PoolPlace

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

_OPTIONS = PoolOptions(read_only=True, deadline=DEADLINE_S)


class ServedCensus:
    """Of a pool on a pool server."""

    def __init__(self, client: PoolClient) -> None:
        self._client = client

    def counts(self) -> PoolCounts:
        """See ``PoolCensus``."""
        stats = self._client.stats()
        questions = stats.questions_with.get(1, 0)
        return PoolCounts(
            trajectories=stats.trajectories,
            bytes=stats.bytes,
            by_policy=most_first(stats.by_policy),
            by_verifier=most_first(stats.by_verifier),
            cap=stats.cap,
            minimum=None,
            tokenizer_digest=stats.tokenizer_digest,
            sealed=stats.sealed,
            coverage=Counted(questions, questions, stats.questions_with, None),
        )

    def questions(self, most: int) -> list[str]:
        """See ``PoolCensus``."""
        return self._client.prompt_page(most)

    def responses(self, prompt_ids: Sequence[str]) -> list[int]:
        """See ``PoolCensus``: a call for each."""
        return [len(self._client.content_ids(prompt_id)) for prompt_id in prompt_ids]

    def entries(self, prompt_id: str, most: int) -> tuple[list[PoolEntry], int]:
        """See ``PoolCensus``: quarantined ones are not known here."""
        ids = self._client.content_ids(prompt_id)
        found: list[PoolEntry] = []
        for content_id in ids[:most]:
            try:
                trajectory = self._client.get(content_id, prompt_id)
            except RecordRefused:
                found.append(PoolEntry(content_id, None, False))
                continue
            if trajectory is not None:
                found.append(PoolEntry(content_id, trajectory, False))
        return found, len(ids)


@contextmanager
def census(place: PoolPlace) -> Iterator[PoolCensus]:
    """Of ``place.name`` there. Raises ``ConfigError``, ``PoolError`` or ``DeadlineExceeded``."""
    if on_server(place.url):
        client = connected(place, _OPTIONS)
        try:
            yield ServedCensus(client)
        finally:
            client.close()
    else:
        with redis_census(place) as opened:
            yield opened


def pool_names(place: PoolPlace) -> list[str]:
    """Names of all pools there. Raises like ``census``."""
    if not on_server(place.url):
        return redis_names(place)
    client = connected(place, _OPTIONS)
    try:
        return client.names()
    finally:
        client.close()
