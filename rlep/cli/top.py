"""``rlep top``: a running run in the terminal, looked at again every second."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from rlep.actors.contact import read_contact
from rlep.cli.live import LOOK_S, run_cluster
from rlep.cli.status import actor_rows, backlog, errors, heading, last_step, phases
from rlep.cli.tables import WIDEST, table_of
from rlep.cli.terminal import Terminal
from rlep.core.errors import ActorLost, ConfigError, RlepError
from rlep.launch.event_loop import ending_signals

if TYPE_CHECKING:
    from rlep.actors.cluster import Cluster
    from rlep.actors.control import RunStatus

QUIT = ("q", "Q")


def watch_run(run: str, *, address: str | None, every_s: float) -> None:
    """Show a run until it ends, ``q`` or Ctrl-C; where standard output is no terminal, show it once."""
    cluster = run_cluster(run, address)
    last = asyncio.run(_watch(cluster, run, every_s))
    if last:
        typer.echo(last)


def frame(status: RunStatus) -> Group:
    """Rows that the terminal shows."""
    lines = [heading(status), phases(status.progress), *last_step(status)]
    below = [*backlog(status), *errors(status)]
    return Group(*map(Text, lines), table_of(actor_rows(status)), *map(Text, below))


async def _watch(cluster: Cluster, run: str, every_s: float) -> str:
    """The last line: why it is over, or nothing where one frame was asked for."""
    from rlep.actors.control import Look, RunClient

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(cluster.connect)
    try:
        console = Terminal()
        if not console.is_terminal:
            status = await RunClient(cluster).ask(Look(), deadline_s=LOOK_S)
            Terminal(width=WIDEST).print(frame(status))
            return ""
        for number in ending_signals():
            loop.add_signal_handler(number, stop.set)
        with _keys(stop):
            return await _live(cluster, run, console, every_s, stop)
    finally:
        await asyncio.to_thread(cluster.close)


async def _live(cluster: Cluster, run: str, console: Terminal, every_s: float, stop: asyncio.Event) -> str:
    """Show a frame every so often; one look at a time, each with a deadline."""
    from rlep.actors.control import Look, RunClient

    stopped = asyncio.create_task(stop.wait())
    known = read_contact(Path(run))
    client = RunClient(cluster)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            seen = False
            while True:
                looking = asyncio.create_task(client.ask(Look(), deadline_s=LOOK_S))
                await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    looking.cancel()
                    return f"{run} continues"
                try:
                    status = looking.result()
                except RlepError as error:
                    if known is not None and read_contact(Path(run)) != known:
                        return f"{run} has ended"
                    if not (seen and isinstance(error, ActorLost)):
                        raise
                    seen = False
                    try:
                        client = RunClient(cluster)  # its driver may have started that actor again
                    except ConfigError:
                        return f"{run} has ended"
                    continue
                seen = True
                live.update(frame(status), refresh=True)
                await asyncio.wait({stopped}, timeout=every_s)
    finally:
        stopped.cancel()


@contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on ``q``; the terminal is left as it was found."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        pressed = os.read(file, 64).decode(errors="replace")
        if not pressed or any(key in pressed for key in QUIT):
            stop.set()
            loop.remove_reader(file)

    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
