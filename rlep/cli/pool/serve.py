"""``rlep pool serve``: the pools of one Redis over gRPC, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rlep.core.errors import ConfigError
from rlep.launch.event_loop import ending_signals
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.server import PoolServer, ServerOptions
from rlep.services.pool.rpc.tls import ServerTls
from rlep.services.pool.storage.connection import Client, connect, until_deadline

_CONNECT_DEADLINE = 30.0


def serve(embedded: Path | None, url: str | None, options: ServerOptions) -> None:
    """Print the address once the server is healthy, and serve. Calls in flight may end after a signal."""
    if (embedded is None) == (url is None):
        raise ConfigError("where the pools lie: give either --embedded DIRECTORY or --redis URL")
    with _redis(embedded, url) as client, PoolServer(client, options) as server:
        if options.token_file is None:
            typer.echo("without --token-file everybody on this machine may read and change these pools", err=True)
        asyncio.run(_until_signalled(server.address))


def tls_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """The three options as one value."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs --tls-cert and --tls-key together, with --tls-client-ca or without")
    return ServerTls(certificate, key, client_ca)


async def _until_signalled(address: str) -> None:
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    typer.echo(address)
    await stop.wait()
    typer.echo("stopping …", err=True)


@contextmanager
def _redis(embedded: Path | None, url: str | None) -> Iterator[Client]:
    """A client of the Redis, which is started where it is an embedded one."""
    server = EmbeddedRedis(embedded).start() if embedded else None
    try:
        address, password_file = (server.url, server.password_file) if server else (url or "", None)
        client = until_deadline(
            "connecting", lambda: connect(address, password_file=password_file), deadline=_CONNECT_DEADLINE
        )
        try:
            yield client
        finally:
            client.close()
    finally:
        if server:
            server.stop()
