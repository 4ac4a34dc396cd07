"""Progress bars on a terminal; elsewhere only the notes, one line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlep.actors.run_progress import Phase
from rlep.cli.shell import say_stopping
from rlep.driver.ports import Advance


class TerminalProgress:
    """``CommandProgress`` on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            redirect_stdout=False,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> TerminalProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """A bar that goes when the block ends; without a total it only counts."""
        task = self._progress.add_task(name, total=total, unit=unit)

        def advance(by: int = 1) -> None:
            self._progress.advance(task, by)

        try:
            yield advance
        finally:
            self._progress.remove_task(task)

    def phases(self) -> tuple[Phase, ...]:
        """The bars that are there now."""
        return tuple(
            Phase(task.description, int(task.completed), None if task.total is None else int(task.total), unit)
            for task in self._progress.tasks
            if isinstance(unit := task.fields["unit"], str)
        )

    def stopping(self) -> None:
        """The command was told to stop."""
        say_stopping()

    def note(self, text: str) -> None:
        """One line of text."""
        self.console.print(text, markup=False, soft_wrap=True)
