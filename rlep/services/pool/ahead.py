"""Several reads of Redis under way at once, on one connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import redis
from redis.exceptions import RedisError

from rlep.services.pool.storage.connection import Command, RetryingRedis, packed


class Ahead:
    """Reading commands under way on a connection of their own; where it fails, the rest are asked for anew.

    A cluster has no single connection: there each batch is asked for when its answers are taken.
    """

    def __init__(self, link: RetryingRedis, what: str) -> None:
        """Use as a context manager, by one thread. ``what`` is said in errors."""
        self._link, self._what = link, what
        self._pool = link.client.connection_pool if isinstance(link.client, redis.Redis) else None
        self._connection: Any = None
        self._unanswered = deque[Sequence[Command]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def ask(self, commands: Sequence[Command]) -> None:
        """Send a batch."""
        self._unanswered.append(commands)
        if self._pool is None:
            return
        try:
            self._connection = self._connection or self._pool.get_connection()
            self._connection.send_packed_command([packed(commands)])
        except RedisError:
            self._give_up()

    def answers(self) -> list[Any]:
        """The answers to the oldest batch. Raises as ``RetryingRedis.many`` does."""
        commands = self._unanswered[0]
        if self._pool is not None:
            try:
                found = [self._connection.read_response() for _ in commands]
            except RedisError:
                self._give_up()
        if self._pool is None:
            found = self._link.many(self._what, commands)
        self._unanswered.popleft()
        return found

    def _give_up(self) -> None:
        """Leave the connection: what else is wanted goes the slow way, with its retries."""
        self._close()
        self._pool = None

    def _close(self) -> None:
        """Hand the connection back, closed if answers are still on their way."""
        if self._pool is not None and self._connection is not None:
            if self._unanswered:
                self._connection.disconnect()
            self._pool.release(self._connection)
            self._connection = None
