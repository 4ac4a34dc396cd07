"""``rlep console``: run directories in a browser, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

TOKEN_FILE = Path("~/.config/rlep/console.token")


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
) -> None:
    """Show runs in a browser: curves, the groups of each step, responses, evaluations. Reads files, changes nothing."""
    import uvicorn

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
    path = token_file.expanduser()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = Tokens.read(path)

    def knows(token: str) -> bool:
        caller = tokens.caller(token)
        return caller is not None and caller.role("") >= Role.READ  # a token of one pool opens no run

    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"http://{shown}:{listening.getsockname()[1]}")
    typer.echo(f"log in with the token in {path}", err=True)
    options = uvicorn.Config(
        console_app(searched, knows),
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(options).run(sockets=[listening])
