"""An embedded Redis and the files of its directory, for tests of both."""

from __future__ import annotations

from pathlib import Path

import redis

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.storage.connection import connect


def client_of(server: EmbeddedRedis) -> redis.Redis:
    """A client of the server."""
    client = connect(server.url, password_file=server.password_file)
    assert isinstance(client, redis.Redis)
    return client


def append_only_file(data: Path) -> Path:
    """The part of it that holds all that was written."""
    parts = (p for p in data.rglob("appendonly.aof*") if p.is_file() and "manifest" not in p.name)
    return max(parts, key=lambda part: part.stat().st_size)
