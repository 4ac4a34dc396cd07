"""End of a command: mistakes as one sentence with exit code 2, faults as one sentence with exit code 1."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

import typer

from rlep.core.errors import INTERRUPTED, RlepError
from rlep.core.versions import missing_extra

P = ParamSpec("P")
_stopping = threading.Event()
"""The command has said that it stops."""


def command_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn rlep's own errors, and what the system refuses, into a message and an exit code; all else keeps its traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        _stopping.clear()
        try:
            command(*args, **kwargs)
        except RlepError as error:
            _say_error(str(error))
            raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
        except ModuleNotFoundError as error:
            if (missing := missing_extra(error)) is None:
                raise
            _say_error(str(missing))
            raise typer.Exit(1) from None
        except BrokenPipeError:
            raise  # nobody reads the output any more; the command line ends quietly
        except OSError as error:
            if error.strerror is None:  # not from the system: another exception
                raise
            _say_error(f"{error.filename or 'the system'}: {error.strerror}")
            raise typer.Exit(1) from None
        except (KeyboardInterrupt, asyncio.CancelledError):
            if not _stopping.is_set():
                typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return guarded


def _say_error(text: str) -> None:
    from rlep.cli.terminal import Terminal

    Terminal(stderr=True, soft_wrap=True).print(f"error: {text}", style="red")


def say_stopping() -> None:
    """Tell the user that the command was told to stop and closes what it started."""
    _stopping.set()
    typer.echo("stopping …", err=True)
