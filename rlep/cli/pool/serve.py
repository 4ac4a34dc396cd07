"""``rlep pool serve``: the pools of one Redis over gRPC, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.cli.pool.which import SERVE, pool_app
from rlep.cli.shell import command_errors

if TYPE_CHECKING:
    from rlep.services.pool.rpc.tls import ServerTls
    from rlep.services.pool.storage.connection import Client

_CONNECT_DEADLINE = 30.0


@pool_app.command(rich_help_panel=SERVE)
@command_errors
def serve(
    *,
    embedded: Annotated[Path | None, typer.Option(metavar="DIR", help="Start an embedded Redis over DIR.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="redis://, rediss:// or unix://.")] = None,
    listen: Annotated[str, typer.Option(metavar="[HOST:]PORT", help="Port 0: a free one.")] = "127.0.0.1:7171",
    pool: Annotated[str, typer.Option(metavar="NAME", help="The pool of callers that name none.")] = "pool",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Lines TOKEN, ROLE TOKEN or ROLE@POOL TOKEN; made with one admin token if there is none."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Let in only clients of this authority.")] = None,
) -> None:
    """Serve the pools of one Redis over gRPC; prints the address when it is healthy."""
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.access import listen_address
    from rlep.services.pool.rpc.server import PoolServer, ServerOptions

    options = ServerOptions(listen_address(listen), pool, token_file, _tls_of(tls_cert, tls_key, tls_client_ca))
    if (embedded is None) == (redis is None):
        raise ConfigError("where the pools lie: give either --embedded DIRECTORY or --redis URL")
    with _redis(embedded, redis) as client, PoolServer(client, options) as server:
        if options.token_file is None:
            typer.echo("without --token-file everybody on this machine may read and change these pools", err=True)
        asyncio.run(_until_signalled(server.address))


def _tls_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """The three options as one value."""
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.tls import ServerTls

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs --tls-cert and --tls-key together, with --tls-client-ca or without")
    return ServerTls(certificate, key, client_ca)


async def _until_signalled(address: str) -> None:
    from rlep.launch.event_loop import ending_signals

    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    typer.echo(address)
    await stop.wait()
    typer.echo("stopping …", err=True)


@contextmanager
def _redis(embedded: Path | None, url: str | None) -> Iterator[Client]:
    """A client of the Redis, which is started where it is an embedded one."""
    from rlep.services.pool.embedded.redis_process import EmbeddedRedis
    from rlep.services.pool.rpc.places import hosted
    from rlep.services.pool.storage.connection import connect, until_deadline
    from rlep.services.pool.values import PoolPlace

    with ExitStack() as stack:
        address, password_file = url or "", None
        if embedded:  # served on its socket, too, for whoever names the directory
            stack.enter_context(hosted(PoolPlace(None, embedded, "pool")))
            server = EmbeddedRedis(embedded)
            address, password_file = server.url, server.password_file
        client = until_deadline(
            "connecting", lambda: connect(address, password_file=password_file), deadline=_CONNECT_DEADLINE
        )
        yield stack.enter_context(closing(client))
