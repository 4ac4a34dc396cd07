"""The only connection to Redis: redis-py's own retries off, a deadline around everything, and errors by their cause.

redis-py 8 retries ten times by itself: a command whose reply was lost is then applied twice. Here only operations that
may be applied twice are retried, by ``RetryingRedis``, until a deadline. A write returns when the server has handed it to its
operating system: with ``appendfsync everysec`` Redis replies while up to two seconds of writes lie in its memory only.

``tenacity`` would not shorten this: one deadline spans the retries of several commands, and a write whose reply was lost is
sent again only if the server's process changed.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError

T = TypeVar("T")
Client = redis.Redis
Command = tuple[Any, ...]

_log = logging.getLogger(__name__)
# Codes of states that pass when a server has started, caught up, or been given room again; UNWRITTEN is ours.
_PASSING = {
    "LOADING", "READONLY", "OOM", "MISCONF", "NOSCRIPT", "MASTERDOWN", "BUSY", "NOREPLICAS", "UNWRITTEN",
}  # fmt: skip
_DEMOTED = {"READONLY", "MASTERDOWN"}
"""Replies of the primary of before a failover, on connections that are open still."""
# redis-py takes the code off these.
_CODES: dict[type[RedisError], str] = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.MasterDownError: "MASTERDOWN",
}
# How Redis 6 reports what a command in a script met: "Error running script (…): @user_script: 12: -OOM command …".
_IN_SCRIPT = re.compile(r"@user_script: \d+: -?([A-Z]+) ")
_REFUSED = {
    "OOM": "it is out of memory (maxmemory); reads go on. Raise maxmemory or prune the pool",
    "MISCONF": "it cannot write its append-only file; reads go on. Free disk space where its data lies",
    "READONLY": "it is a read-only replica; give the primary's address",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
}
_SCRIPTS = {
    name: resources.files("rlep.services.pool.storage").joinpath(f"scripts/{name}.lua").read_text()
    for name in ("add", "remove", "fence", "lease", "written")
}


class _Progress(NamedTuple):
    """Progress of a server in its append-only file."""

    run: bytes
    """Names the server's process."""
    size: int = 0
    """Bytes in the file."""
    pending: int = 0
    """Bytes in the server's memory only."""
    status: bytes = b"ok"
    """``err`` when the last attempt to write failed."""


def read_password(password_file: Path | None = None) -> str | None:
    """The Redis password: from a file, else from ``RLEP_REDIS_PASSWORD`` or ``RLEP_REDIS_PASSWORD_FILE``, else None."""
    if password_file is None and (password := os.environ.get("RLEP_REDIS_PASSWORD")):
        return password
    named = os.environ.get("RLEP_REDIS_PASSWORD_FILE")
    path = password_file or (Path(named) if named else None)
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Redis password file {path} cannot be read: {error}") from None


def connect(url: str, *, password_file: Path | None = None, timeout: float = 5.0) -> Client:
    """A client for ``redis://``, ``rediss://`` or ``unix://``.

    ``timeout`` is the longest wait for one reply in seconds. A URL may carry a user name, never a password. Raises
    ``ConfigError`` for the URL and ``PoolError`` or a redis-py error where the connection fails.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(f"Redis address {parts.scheme:.20}://… does not start with redis://, rediss:// or unix://")
    if parts.password or any("password" in name for name in parse_qs(parts.query, keep_blank_values=True)):
        raise ConfigError(
            f"Redis address {parts.scheme}://… holds a password, which logs would show: give it in a password file, "
            "RLEP_REDIS_PASSWORD or RLEP_REDIS_PASSWORD_FILE"
        )
    options: dict[str, Any] = {
        "password": read_password(password_file),
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # Ours has one deadline for all attempts; redis-py's would go on beyond it.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if parts.username:
        options["username"] = parts.username
    client = redis.Redis.from_url(url, **options)
    if parts.scheme != "unix" and client.info("cluster").get("cluster_enabled"):
        client.close()
        raise PoolError(
            f"the Redis at {parts.scheme}://… is a cluster; a pool lies on one server: give it one of its own"
        )
    return client


class RetryingRedis:
    """A client with a deadline: what is retried, what is not, and what is raised in the end."""

    def __init__(self, client: Client, *, deadline: float = 30.0) -> None:
        """``deadline``: seconds that one operation may take, retries included."""
        self.client = client
        self.deadline = deadline
        self._shas: dict[str, str] = {}
        self._run_id = b""

    def call(self, what: str, operation: Callable[[], T]) -> T:
        """The result of an operation that may be applied twice, tried until the deadline.

        Raises ``DeadlineExceeded`` when Redis did not reply in time, ``PoolError`` when it refused to the end.
        """

        def attempt() -> T:
            try:
                return operation()
            except RedisError as error:
                if _code(error) in _DEMOTED:
                    self.reconnect()
                raise

        return until_deadline(what, attempt, deadline=self.deadline)

    def reconnect(self) -> None:
        """Close the connections that nobody uses now: behind the address another server may be the primary by now."""
        self.client.connection_pool.disconnect(inuse_connections=False)

    def one(self, what: str, *command: Any) -> Any:
        """The reply to one reading command."""
        return self.call(what, lambda: self.client.execute_command(*command))

    def many(self, what: str, commands: Sequence[Command]) -> list[Any]:
        """The replies to reading commands, sent together."""
        return self.call(what, lambda: self._send(commands)) if commands else []

    def write(self, what: str, commands: Sequence[Command], *, atomic: bool = False) -> list[Any]:
        """The replies to idempotent writes (name, key, …), sent together, once the append-only file holds them."""
        return self._written(what, lambda: self._send(commands, atomic)) if commands else []

    def script(self, what: str, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The reply to one of ``scripts/*.lua``, once the append-only file holds its writes.

        It must bear being applied twice.
        """
        return self._written(what, lambda: self._run(name, keys, arguments))

    def _send(self, commands: Sequence[Command], atomic: bool = False) -> list[Any]:
        with self.client.pipeline(transaction=atomic) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return _checked(pipeline.execute(raise_on_error=False))

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        sha = self._shas.get(name) or self._load(name)
        try:
            return self._send([("EVALSHA", sha, len(keys), *keys, *arguments)])[0]
        except exceptions.NoScriptError:
            self._shas.pop(name, None)
            raise

    def _written(self, what: str, operation: Callable[[], T]) -> T:
        """The replies to a write, once the server has handed it to its operating system.

        A server that was started again in between may have lost the write: it is then sent once more.
        """
        replies: T | None = None
        run = b""
        first: _Progress | None = None

        def attempt() -> T:
            nonlocal replies, run, first
            if replies is None:
                run = self._run_id or self._progress().run
                replies, first = operation(), None
            now = self._progress()
            if now.run != run:
                replies = None
                raise exceptions.ConnectionError("it was started again before all was in its append-only file")
            # A file that shrank was rewritten meanwhile: count anew.
            first = now if first is None or now.size < first.size else first
            if now.pending and now.size < first.size + first.pending:
                code = "UNWRITTEN" if now.status == b"ok" else "MISCONF"
                raise ResponseError(f"{code} its append-only file lacks {now.pending} bytes")
            return replies

        return self.call(what, attempt)

    def _progress(self) -> _Progress:
        """Ask the server how far it has written."""
        progress = _Progress(*self._run("written", [], []))
        self._run_id = progress.run
        return progress

    def _load(self, name: str) -> str:
        sha = self.client.script_load(_SCRIPTS[name])
        self._shas[name] = sha.decode() if isinstance(sha, bytes) else str(sha)
        return self._shas[name]


def until_deadline(what: str, operation: Callable[[], T], *, deadline: float) -> T:
    """Try an idempotent operation until it succeeds, fails for good, or ``deadline`` seconds have passed."""
    start, pause = time.monotonic(), 0.002
    while True:
        try:
            return operation()
        except AuthenticationError as error:
            raise PoolError(f"{what}: Redis refuses these credentials: {error}") from None
        except RedisError as error:
            if not _may_pass(error):
                raise _final(what, error) from error
            if time.monotonic() + pause - start > deadline:
                raise _timed_out(what, error, deadline) from error
            _log.debug("%s: %s; trying again", what, error)
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def _checked(replies: list[Any]) -> list[Any]:
    """All replies, or the first error among them as Redis said it (redis-py would mix the command into it)."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _code(error: RedisError) -> str:
    """The code that Redis' reply began with, or an empty string where there was no reply."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if not isinstance(error, ResponseError):
        return ""
    within = _IN_SCRIPT.search(str(error))
    return within[1] if within else str(error).partition(" ")[0]


def _may_pass(error: RedisError) -> bool:
    return isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError) or _code(error) in _PASSING


def _final(what: str, error: RedisError) -> PoolError:
    code, _, rest = str(error).partition(" ")
    if code == "SEALED":
        return PoolError(f"{what}: the pool is sealed; nothing can be added to it or removed")
    if code == "FENCED":
        return PoolError(f"{what}: a newer incarnation of this writer has taken over (epoch {rest})")
    return PoolError(f"{what}: Redis answered: {error}")


def _timed_out(what: str, error: RedisError, deadline: float) -> PoolError | DeadlineExceeded:
    code = _code(error)
    if code in _REFUSED:
        return PoolError(f"{what}: Redis refuses writes: {_REFUSED[code]} (tried for {deadline:g} s)")
    return DeadlineExceeded(f"{what}: no answer from Redis within {deadline:g} s: {error}")
