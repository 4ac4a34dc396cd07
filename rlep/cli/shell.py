"""How a command ends: mistakes as one sentence with exit code 2, faults as one sentence with exit code 1."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

import typer

from rlep.core.errors import RlepError

P = ParamSpec("P")
T = TypeVar("T")
INTERRUPTED = 130


def command_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn rlep's own errors, and what the system refuses, into a message and an exit code; all else keeps its traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RlepError as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
        except BrokenPipeError:
            raise  # nobody reads the output any more; the command line ends quietly
        except OSError as error:
            if error.strerror is None:  # no answer of the system: somebody's own exception
                raise
            typer.secho(f"error: {error.filename or 'the system'}: {error.strerror}", fg="red", err=True)
            raise typer.Exit(1) from None
        except (KeyboardInterrupt, asyncio.CancelledError):
            typer.echo("interrupted; the same command continues the run", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return guarded


def run_async(main: Coroutine[object, object, T]) -> T:
    """Run to the end; SIGINT and SIGTERM cancel it, so that everything it started is closed. A second one is ignored."""

    async def supervised() -> T:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        stopping = False

        def stop() -> None:
            nonlocal stopping
            if not stopping:
                stopping = True
                typer.echo("stopping …", err=True)
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await task

    return asyncio.run(supervised())
