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


def test_without_a_terminal_a_phase_has_a_line_where_nothing_was_said_for_15_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("rlep.cli.progress.time.monotonic", lambda: now[0])
    with TerminalProgress() as progress, progress.phase("evaluate", 8, "responses") as advance:
        for second in (110, 114, 115, 129, 131, 132, 146):
            now[0] = second
            advance(1)
        now[0] = 200.0
        advance(1)  # complete: what follows says so
    assert capsys.readouterr().err.splitlines() == [
        "evaluate: 3/8 responses",
        "evaluate: 5/8 responses",
        "evaluate: 7/8 responses",
    ]
