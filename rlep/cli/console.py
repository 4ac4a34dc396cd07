"""``rlep console``: run directories in a browser, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

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
        str, typer.Option(metavar="HOST:PORT", help="On loopback. Port 0: a free one.")
    ] = "127.0.0.1:7272",
    token_file: Annotated[
        Path, typer.Option(help="The token to log in with; made, with mode 600, where there is none.")
    ] = TOKEN_FILE,
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
    from rlep.console.app import console_app
    from rlep.core.errors import ConfigError
    from rlep.services.pool.rpc.access import Role, Tokens, is_loopback, split_address

    host, port = split_address(listen)
    if not is_loopback(host):
        raise ConfigError(f"--listen {listen} can be reached from other machines: listen on 127.0.0.1 and use ssh -L")
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

    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None
    _serve(console_app(searched, knows, pools, Actions() if actions else None), listening, pools, path)


def _serve(app: ASGIApp, listening: socket.socket, pools: Sequence[PoolPlace], token_file: Path) -> None:
    """Say where, and answer until the process is told to stop; embedded pools are served as long."""
    import uvicorn

    from rlep.services.pool.embedded.redis_process import EmbeddedRedis

    host, port = listening.getsockname()[:2]
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
            if place.url is None:
                stack.enter_context(EmbeddedRedis(place.directory))
        stack.enter_context(suppress(KeyboardInterrupt))
        typer.echo(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        typer.echo(f"log in with the token in {token_file}", err=True)
        uvicorn.Server(options).run(sockets=[listening])


def _place_of(text: str, token_file: Path | None, ca_file: Path | None) -> PoolPlace:
    """Where the pools are that ``--pool`` names. Raises ``ConfigError``, which repeats nothing of an address."""
    from pydantic import ValidationError

    from rlep.config.roles import PoolConfig
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
        raise ConfigError(f"--pool {text.split('://', maxsplit=1)[0]:.20}://…: {error.errors()[0]['msg']}") from None
    return PoolPlace(text, Path(), NAME, token_file, ca_file) if on_server(text) else PoolPlace(text, Path(), NAME)
