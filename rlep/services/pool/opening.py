"""A pool of a configured Redis, or of an embedded one that is started for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.lease import PoolLease
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.connection import Client, RetryingRedis, connect, until_deadline
from rlep.services.pool.storage.store import Store
from rlep.services.pool.values import PoolOptions


class OpenPool:
    """A pool and the embedded server that was started for it, closed together."""

    def __init__(self, pool: Pool, undo: ExitStack) -> None:
        self.pool = pool
        self._undo = undo

    def close(self) -> None:
        """Disconnect and give the lease back; an embedded server stops when its last user disconnects."""
        self._undo.close()

    def __enter__(self) -> Pool:
        return self.pool

    def __exit__(self, *_: object) -> None:
        self.close()


def open_pool(
    url: str | None, directory: Path, name: str, *, tokenizer_digest: str | None, options: PoolOptions
) -> OpenPool:
    """The pool ``name`` of the Redis at ``url``; where that is None, of an embedded Redis over ``directory``.

    The password of a Redis at ``url`` comes from the environment (``read_password``). Raises what ``Pool.open`` and
    ``EmbeddedRedis.start`` raise, and with ``options.holder`` what ``PoolLease`` raises.
    """
    with ExitStack() as undo:
        password_file = None
        if url is None:
            server = EmbeddedRedis(directory).start()
            undo.callback(server.stop)
            url, password_file = server.url, server.password_file
        if options.holder is not None:
            link = _linked(name, partial(connect, url, password_file=password_file), options.deadline)
            undo.enter_context(closing(PoolLease(link, name, options.holder)))
            # Counted, not read from a clock: one that was set back would make this the older incarnation.
            options = replace(options, writer_epoch=1 + Store(link, name).newest_epoch(options.writer))
        pool = Pool.open(url, name, tokenizer_digest=tokenizer_digest, password_file=password_file, options=options)
        undo.callback(pool.close)
        return OpenPool(pool, undo.pop_all())


def _linked(name: str, connecting: Callable[[], Client], deadline: float) -> RetryingRedis:
    client = until_deadline(f"pool {name}: connecting", connecting, deadline=deadline)
    return RetryingRedis(client, deadline=deadline)
