"""``rlep console``: run directories in a browser, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from rlep.services.pool.values import PoolPlace

_HOSTS = ("127.0.0.1", "localhost")
NAME = "pool"
"""Stands where a pool's name is not chosen yet."""


def console(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR…]", help="Runs, or directories above some; runs otherwise.")
    ] = None,
    *,
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="An address of this machine alone. Port 0: a free one.")
    ] = "127.0.0.1:7272",
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL|HOST:PORT|DIR", help="Pools to show: a Redis, a pool server, or an embedded pool's directory."
        ),
    ] = None,
    pool_token_file: Annotated[Path | None, typer.Option(help="The token for a pool server (pool.token_file).")] = None,
    pool_ca_file: Annotated[Path | None, typer.Option(help="Authority of its certificate (pool.ca_file).")] = None,
) -> None:
    """Show runs in a browser: curves, the groups of each step, responses, evaluations, pools. It changes nothing."""
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.access import listen_address, split_address
    from rlep.view.app import console_app

    searched = directories or [Path("runs")]
    for directory in searched:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: there is no such directory; name a run, or a directory above some")
    pools = [_place_of(text, pool_token_file, pool_ca_file) for text in pool or ()]
    host, port = split_address(listen_address(listen))
    if host not in _HOSTS:
        raise ConfigError(f"--listen {listen}: the console is for this machine alone: {' or '.join(_HOSTS)}")
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error}; --listen 0 takes a free port") from None
    token = secrets.token_urlsafe(32)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"
    _serve(console_app(searched, token, pools), listening, pools, lambda: typer.echo(address))


def _serve(app: ASGIApp, listening: socket.socket, pools: Sequence[PoolPlace], say: Callable[[], None]) -> None:
    """Answer until the process is told to stop; pools that no server has are served as long. ``say`` is called when they are."""
    import uvicorn

    from rlep.services.pool.rpc.places import hosted

    options = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
    )
    with ExitStack() as stack:
        for place in pools:
            stack.enter_context(hosted(place))
        stack.enter_context(suppress(KeyboardInterrupt))
        say()
        uvicorn.Server(options).run(sockets=[listening])


def _place_of(text: str, token_file: Path | None, ca_file: Path | None) -> PoolPlace:
    """Return the place of the pools that ``--pool`` names. Raises ``ConfigError``, which repeats nothing of an address."""
    from pydantic import ValidationError

    from rlep.config.roles import PoolConfig, pool_url
    from rlep.config.settings import reason
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.places import on_server, private_socket
    from rlep.services.pool.values import PoolPlace

    text = pool_url(text)
    if "://" not in text:
        directory = Path(text).absolute()
        if not (directory / "redis.conf").is_file():
            raise ConfigError(f"--pool {text}: no embedded pool lies there, and it is no URL")
        return PoolPlace(None, directory, NAME)
    try:
        PoolConfig(url=text)
    except ValidationError as error:
        raise ConfigError(f"--pool {text.split('://', maxsplit=1)[0]:.20}://…: {reason(error.errors()[0])}") from None
    return (
        PoolPlace(text, Path(), NAME, token_file, ca_file)
        if on_server(text)
        else PoolPlace(text, Path(), NAME, socket=private_socket(text))
    )
