"""``rlep top``: a running run in the terminal, looked at again every second."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from rlep.actors.contact import read_contact
from rlep.cli.live import LOOK_S, Address, Run, run_cluster
from rlep.cli.status import view
from rlep.cli.tables import WIDEST
from rlep.cli.terminal import Terminal
from rlep.core.errors import ActorLost, ConfigError, RlepError
from rlep.launch.event_loop import ending_signals

if TYPE_CHECKING:
    from rlep.actors.cluster import Cluster

QUIT = ("q", "Q")


def top(
    run: Run,
    address: Address = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two frames.")] = 1,
) -> None:
    """Show a running run continuously, until it ends, q or Ctrl-C: its actors, and the time of the last step.

    If standard output is not a terminal, print one frame.
    """
    last = asyncio.run(_watch(run_cluster(run, address), run, every))
    if last:
        typer.echo(last)


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
            Terminal(width=WIDEST).print(view(status, step=True))
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
                live.update(view(status, step=True), refresh=True)
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
