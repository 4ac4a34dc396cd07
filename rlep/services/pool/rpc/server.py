"""The pool as a gRPC server: where it listens, who may, and for how long."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection

from rlep.core.errors import ConfigError, PoolError, RlepError
from rlep.core.heap import keep_freed_memory
from rlep.services.pool.rpc.access import Tokens, is_local
from rlep.services.pool.rpc.gatekeeper import Gatekeeper
from rlep.services.pool.rpc.proto import pool_pb2_grpc
from rlep.services.pool.rpc.registry import PoolRegistry
from rlep.services.pool.rpc.service import PoolServicer
from rlep.services.pool.rpc.tls import ServerTls
from rlep.services.pool.rpc.watched_health import WatchedHealth
from rlep.services.pool.rpc.wire import MESSAGE_BYTES, SERVICE
from rlep.services.pool.storage.checks import check_room, check_server
from rlep.services.pool.storage.connection import Client, RetryingRedis
from rlep.services.pool.storage.store import check_name

GRACE = 5.0
"""Seconds that calls get to end when the server stops."""

_CALLS_AT_ONCE = 128
"""Each has a thread: one token's calls do not make another's wait. Calls beyond these are refused, and made again."""
_WATCH_EVERY = 2.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared with whoever has it
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Clients ping every 10 s, also between calls; one that pings more often than this is cut off.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of a server."""

    listen: str = "127.0.0.1:0"
    """``host:port``; port 0 takes a free one. Beyond loopback it needs tokens and TLS. Or ``unix:PATH``, of a socket in a
    directory that nobody else enters."""
    pool: str = "pool"
    """The pool of a request that names none."""
    token_file: Path | None = None
    """See ``Tokens.read``. None lets everybody do everything, on loopback only."""
    tls: ServerTls | None = None
    deadline: float = 20.0
    """Seconds for one operation on Redis; shorter than a client's, so that it hears the reason."""
    strict: bool = True
    """Refuse a Redis that is not set up for a writer. False: readers are served, and whoever writes is told."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for what cannot be a pool's name."""
        check_name(self.pool)


class PoolServer:
    """All pools of one Redis over gRPC, with health checks and reflection. Use as a context manager."""

    def __init__(self, client: Client, options: ServerOptions) -> None:
        """Raises ``ConfigError`` for an address that must not be listened on like this, ``PoolError`` for the Redis."""
        tokens = Tokens.read(options.token_file) if options.token_file else None
        if not is_local(options.listen) and (tokens is None or options.tls is None):
            raise ConfigError(
                f"{options.listen} can be reached from other machines: it needs a token file and TLS "
                "(--token-file, --tls-cert, --tls-key); without them listen on 127.0.0.1"
            )
        link = RetryingRedis(client, deadline=options.deadline)
        check_server(link, read_only=not options.strict)
        try:
            check_room(link)
        except PoolError as error:  # it serves readers, and those who make room
            _log.warning("%s. Until then nothing is added", error)
        keep_freed_memory()
        self._client = client
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="pool-call")
        self._gatekeeper = Gatekeeper(tokens)
        self._server = grpc.server(
            self._threads, interceptors=(self._gatekeeper,), options=_OPTIONS, maximum_concurrent_rpcs=_CALLS_AT_ONCE
        )
        registry = PoolRegistry(client, deadline=options.deadline)
        servicer = PoolServicer(registry, default_pool=options.pool, gatekeeper=self._gatekeeper)
        pool_pb2_grpc.add_PoolServicer_to_server(servicer, self._server)
        self._health = WatchedHealth()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self.address = _bound(self._server, options)
        """``host:port`` with the port that it got, or ``unix:PATH``."""
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_health, name="pool-health", daemon=True)

    def start(self) -> Self:
        """Serve; healthy when this returns."""
        self._set_health(True)
        self._server.start()
        self._watch.start()
        return self

    def stop(self) -> None:
        """Refuse new calls, give those in flight ``GRACE`` seconds to end, and close."""
        self._stopping.set()
        stopped = self._server.stop(GRACE)  # first: nobody begins to watch any more
        self._health.stop()
        stopped.wait()
        self._threads.shutdown()
        self._gatekeeper.close()
        self._watch.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _keep_health(self) -> None:
        """The server is healthy while it reaches Redis."""
        link, healthy = RetryingRedis(self._client, deadline=_WATCH_EVERY), True
        while not self._stopping.wait(_WATCH_EVERY):
            before = healthy
            try:
                link.call("health: ping", self._client.ping)
                healthy = True
            except RlepError as error:
                healthy = False
                _log.warning("not healthy: %s", error)
            if healthy != before:
                self._set_health(healthy)

    def _set_health(self, healthy: bool) -> None:
        status = HealthCheckResponse.SERVING if healthy else HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            self._health.set(service, status)


def _bound(server: Any, options: ServerOptions) -> str:
    address, tls = options.listen, options.tls
    try:
        port = server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)
    except RuntimeError as error:
        why = str(error).partition("; set GRPC_VERBOSITY")[0]
        raise ConfigError(f"{address} cannot be listened on, it may be in use: {why}") from None
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
