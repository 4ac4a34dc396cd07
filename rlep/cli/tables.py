"""Tables on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rlep.cli.terminal import Terminal

if TYPE_CHECKING:
    from rlep.algorithms.evaluation import EvaluationReport
    from rlep.view.summary import Summary

WIDEST = 160
"""Columns a table may take: a narrower terminal wraps its lines, rather than rich its cells."""

UNLIMITED = 10_000
"""Columns for what nobody reads on a terminal."""


def show_table(rows: Sequence[Mapping[str, str]], title: str | None = None, *, stderr: bool = False) -> None:
    """Rows with the same columns; nothing for no rows."""
    if rows:
        Terminal(width=WIDEST, stderr=stderr).print(table_of(rows, title))


def table_of(rows: Sequence[Mapping[str, str]], title: str | None = None) -> Table:
    """Rows with the same columns, at least one."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def show_facts(name: str, title: str, facts: Sequence[tuple[str, str]]) -> None:
    """(what, value) below their headings. A value that is wider than the terminal goes on in the next line, in its column."""
    console = Terminal()
    if not console.is_terminal:  # for a file or a pipe a line is a fact
        console.width = UNLIMITED
    console.print(facts_table(name, title, facts))


def facts_table(name: str, title: str, facts: Sequence[tuple[str, str]]) -> Table:
    """Return the table that ``show_facts`` prints."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(name), no_wrap=True)
    table.add_column(Text(title), overflow="fold")
    for what, value in facts:
        table.add_row(Text(what), Text(value))
    return table


def show_evaluation(report: EvaluationReport, *, as_json: bool) -> None:
    """The statistics of an evaluation, a row for each data source."""
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        show_table(report.table())


def show_summary(found: Summary, *, stderr: bool = False) -> None:
    """The comparison of runs: a row each, and what they say together; to standard output, or to standard error."""
    show_table([_compact(row) for row in found.rows()], stderr=stderr)
    console = Terminal(soft_wrap=True, stderr=stderr)
    console.print(found.headline())
    for note in found.notes:
        console.print(f"note: {note}")


def _compact(row: Mapping[str, str]) -> dict[str, str]:
    """A summary's row in a terminal's width."""
    short = {"mean over steps": "mean", "s per step": "s/step", "minutes": "min"}
    return {short.get(name, name): cell.replace(" at step ", " @") for name, cell in row.items() if name != "role"}
