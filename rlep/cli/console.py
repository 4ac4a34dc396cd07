"""``rlep console``: run directories in a browser, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from rlep.console.addresses import Addresses, Tls
    from rlep.services.pool.values import PoolPlace

TOKEN_FILE = Path("~/.config/rlep/console.token")
NAME = "pool"
"""Stands where a pool's name is not chosen yet."""


def console(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR…]", help="Runs, or directories above some; runs otherwise.")
    ] = None,
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Beyond loopback it needs TLS. Port 0: a free one.")
    ] = "127.0.0.1:7272",
    token_file: Annotated[
        Path, typer.Option(help="The token to log in with; made, with mode 600, where there is none.")
    ] = TOKEN_FILE,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="https://HOST[:PORT] of a proxy, or another name that browsers use."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="URL|DIR", help="Pools to show: a Redis, a pool server, or an embedded pool's directory."),
    ] = None,
    actions: Annotated[
        bool, typer.Option("--actions", help="Also scale roles and drain actors of running runs, with an admin token.")
    ] = False,
    pool_token_file: Annotated[Path | None, typer.Option(help="The token for a pool server (pool.token_file).")] = None,
    pool_ca_file: Annotated[Path | None, typer.Option(help="Authority of its certificate (pool.ca_file).")] = None,
) -> None:
    """Show runs in a browser: curves, the groups of each step, responses, evaluations, pools. Only --actions can change any."""
    from rlep.console.actions import Actions
    from rlep.console.addresses import addresses_of
    from rlep.console.app import console_app
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.access import Role, Tokens, split_address

    addresses = addresses_of(listen, tls_cert, tls_key, origin or ())
    searched = directories or [Path("runs")]
    for directory in searched:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: there is no such directory; name a run, or a directory above some")
    pools = [_place_of(one, pool_token_file, pool_ca_file) for one in pool or ()]
    path = token_file.expanduser()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = Tokens.read(path)

    def knows(token: str) -> Role:
        caller = tokens.caller(token)
        return Role.NONE if caller is None else caller.role("")  # a token of one pool opens no run

    host, port = split_address(listen)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None
    app = console_app(searched, knows, pools, Actions() if actions else None, addresses)
    _serve(app, listening, addresses.tls, pools, lambda: _say(host, listening, addresses, path))


def _say(host: str, listening: socket.socket, addresses: Addresses, token_file: Path) -> None:
    """Where the console is, its own address first, and how to log in."""
    place = f"[{host}]" if ":" in host else host
    typer.echo(f"{addresses.scheme}://{place}:{listening.getsockname()[1]}")
    for origin in sorted(addresses.origins):
        typer.echo(origin)
    typer.echo(f"log in with the token in {token_file}", err=True)


def _serve(
    app: ASGIApp, listening: socket.socket, tls: Tls | None, pools: Sequence[PoolPlace], say: Callable[[], None]
) -> None:
    """Answer until the process is told to stop; embedded pools are served as long. ``say`` is called when they are."""
    import uvicorn

    from rlep.services.pool.embedded.redis_process import EmbeddedRedis

    options = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    with ExitStack() as stack:
        for place in pools:
            if place.url is None:
                stack.enter_context(EmbeddedRedis(place.directory))
        stack.enter_context(suppress(KeyboardInterrupt))
        say()
        uvicorn.Server(options).run(sockets=[listening])


def _place_of(text: str, token_file: Path | None, ca_file: Path | None) -> PoolPlace:
    """Where the pools are that ``--pool`` names. Raises ``ConfigError``, which repeats nothing of an address."""
    from pydantic import ValidationError

    from rlep.config.roles import PoolConfig
    from rlep.config.settings import reason
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.run_pool import on_server
    from rlep.services.pool.values import PoolPlace

    if "://" not in text:
        directory = Path(text).absolute()
        if not (directory / "redis.conf").is_file():
            raise ConfigError(f"--pool {text}: no embedded pool lies there, and it is no URL")
        return PoolPlace(None, directory, NAME)
    try:
        PoolConfig(url=text)
    except ValidationError as error:
        raise ConfigError(f"--pool {text.split('://', maxsplit=1)[0]:.20}://…: {reason(error.errors()[0])}") from None
    return PoolPlace(text, Path(), NAME, token_file, ca_file) if on_server(text) else PoolPlace(text, Path(), NAME)
