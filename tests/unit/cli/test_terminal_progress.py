"""Progress bars leave standard output to the command: a pipe or a file gets what it prints."""

import io
import sys

import pytest
import typer

from rlep.cli.progress import TerminalProgress


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_a_command_prints_beside_the_bars_stays_on_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    piped, terminal = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", piped)
    monkeypatch.setattr(sys, "stderr", terminal)
    with TerminalProgress() as progress, progress.phase("rollout", 4, "responses"):
        typer.echo("phase 1: train without replay")
        progress.note("starting 1 generator(s)")
    assert piped.getvalue() == "phase 1: train without replay\n"
    assert "starting 1 generator(s)" in terminal.getvalue()
