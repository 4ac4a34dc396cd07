"""All pools of one Redis, each opened when it is first asked for."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from rlep.core.errors import ConfigError, PoolError
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.connection import Client, RetryingRedis
from rlep.services.pool.storage.store import Store
from rlep.services.pool.values import PoolOptions

_MOST_OPEN = 256


class Writer(NamedTuple):
    """Writer of a pool: incarnations of one name fence each other by epoch."""

    name: str
    epoch: int | None


UNFENCED = Writer("main", None)
_Key = tuple[str, Writer | None, bool]
"""Name, writer, and whether it may meet a Redis without room."""


class PoolRegistry:
    """Pools that share one client. Safe to share between threads."""

    def __init__(self, client: Client, *, deadline: float) -> None:
        """``deadline``: seconds for one operation on Redis."""
        self._client, self.deadline = client, deadline
        self._lock = threading.Lock()
        self._open: OrderedDict[_Key, Pool] = OrderedDict()

    def names(self) -> list[str]:
        """Names of all pools, ascending."""
        return self._store("any").names()

    def reader(self, name: str, *, fresh: bool = False) -> Pool:
        """A pool to read, empty where there is none; ``fresh`` looks whether it was sealed meanwhile."""
        options = PoolOptions(read_only=True, may_be_missing=True, deadline=self.deadline)
        pool = self._opened((name, None, True), lambda: self._open_one(name, None, options))
        if fresh and pool.sealed is None and (meta := pool.store.meta()) and meta.digest:
            self.forget(name)
            return self.reader(name)
        return pool

    def writer(self, name: str, writer: Writer = UNFENCED, stated: str | None = None) -> Pool:
        """A pool to write. Where there is none it is made, if its tokenizer's digest is ``stated``."""

        def open_it() -> Pool:
            store = self._store(name)
            meta = store.meta()
            if meta is None and stated is None:
                raise PoolError(
                    f"there is no pool {name} in this Redis; pools found: {', '.join(store.names()) or 'none'}"
                )
            digest = meta.tokenizer_digest if meta else stated
            _check_epoch(writer, store.newest_epoch(writer.name) if meta else 0)
            options = PoolOptions(
                may_be_full=stated is None,  # what does not add is what makes room
                writer=writer.name,
                writer_epoch=writer.epoch,
                deadline=self.deadline,
            )
            return self._open_one(name, digest, options)

        key = name, writer, stated is None  # a writer that may meet a full Redis is none that adds
        pool = self._opened(key, open_it)
        if pool.vocabulary is None and _vocabulary(pool.store):
            self.forget(name)  # readers, too, learn it
            pool = self._opened(key, open_it)
        return pool

    def record_vocabulary(self, pool: Pool, vocabulary: int) -> None:
        """Make it that of a pool that has none; the others that have it open learn of it."""
        pool.store.set_vocabulary(vocabulary)
        self.forget(pool.name)

    def open(self, name: str, tokenizer_digest: str | None, options: PoolOptions) -> Pool:
        """A pool as ``Pool.open`` gives it, made where there is none; the others that have it open learn of it."""
        pool = self._open_one(name, tokenizer_digest, options)
        if not options.read_only:
            self.forget(name)
        return pool

    def next_epoch(self, name: str, writer: str) -> int:
        """Of this writer's incarnations the one that begins now. Counted, not read from a clock, which may be set back."""
        return 1 + self._store(name).newest_epoch(writer)

    def lease(self, name: str, holder: str, seconds: float) -> tuple[str, float] | None:
        """Take, renew or give back: see ``Store.lease``."""
        return self._store(name).lease(holder, seconds)

    def forget(self, name: str) -> None:
        """Open this pool anew the next time it is asked for."""
        with self._lock:
            for key in [key for key in self._open if key[0] == name]:
                del self._open[key]

    def _store(self, name: str) -> Store:
        return Store(RetryingRedis(self._client, deadline=self.deadline), name)

    def _open_one(self, name: str, tokenizer_digest: str | None, options: PoolOptions) -> Pool:
        return Pool.open(self._client, name, tokenizer_digest=tokenizer_digest, options=options)

    def _opened(self, key: _Key, open_it: Callable[[], Pool]) -> Pool:
        with self._lock:
            pool = self._open.get(key)
            if pool is not None:
                self._open.move_to_end(key)
                return pool
        pool = open_it()  # outside the lock: a slow Redis does not delay calls to other pools
        if not pool.tokenizer_digest:  # somebody may make it
            return pool
        with self._lock:
            pool = self._open.setdefault(key, pool)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return pool


def _check_epoch(writer: Writer, newest: int) -> None:
    """Refuse an epoch that would leave none to the writer's next incarnations.

    The next number always is allowed, and a time of today in seconds or milliseconds.
    """
    most = max(newest + 1, int(1000 * (time.time() + 86_400)))
    if writer.epoch is not None and writer.epoch > most:
        raise ConfigError(f"writer {writer.name}: epoch {writer.epoch} is beyond {most}; the next one is {newest + 1}")


def _vocabulary(store: Store) -> int | None:
    """Return the vocabulary that is recorded by now."""
    meta = store.meta()
    return meta.vocabulary if meta else None
