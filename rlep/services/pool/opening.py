"""A pool of a configured Redis, or of an embedded one that is started for it."""

from __future__ import annotations

from pathlib import Path

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions


class OpenPool:
    """A pool and the embedded server that was started for it, closed together."""

    def __init__(self, pool: Pool, server: EmbeddedRedis | None) -> None:
        self.pool = pool
        self._server = server

    def close(self) -> None:
        """Disconnect; an embedded server stops when its last user disconnects."""
        self.pool.close()
        if self._server is not None:
            self._server.stop()

    def __enter__(self) -> Pool:
        return self.pool

    def __exit__(self, *_: object) -> None:
        self.close()


def open_pool(
    url: str | None, directory: Path, name: str, *, tokenizer_digest: str | None, options: PoolOptions
) -> OpenPool:
    """The pool ``name`` of the Redis at ``url``; where that is None, of an embedded Redis over ``directory``.

    The password of a Redis at ``url`` comes from the environment (``read_password``). Raises what ``Pool.open`` and
    ``EmbeddedRedis.start`` raise.
    """
    if url is not None:
        return OpenPool(Pool.open(url, name, tokenizer_digest=tokenizer_digest, options=options), None)
    server = EmbeddedRedis(directory).start()
    try:
        pool = Pool.open(
            server.url, name, tokenizer_digest=tokenizer_digest, password_file=server.password_file, options=options
        )
    except BaseException:
        server.stop()
        raise
    return OpenPool(pool, server)
