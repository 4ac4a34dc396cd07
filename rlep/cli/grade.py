"""``rlep grade``: rows of any origin through the verifier."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TextIO

import typer

from rlep.core.errors import DataError, UngradedRows, VerifierError

NAMED = 10
"""Rows without a verdict that are named one by one."""


def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='Rows {"gold": …, "response": …}.')],
    profile: Annotated[
        str,
        typer.Option(
            help="math, math-bare, strict-box, dapo, exact, reasoning-gym, code, regex:PATTERN, python:MODULE:NAME, judge:FILE"
        ),
    ] = "math",
    *,
    workers: Annotated[int, typer.Option(min=1, help="Grading processes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="File for the graded rows; standard output otherwise.")] = None,
    correct_at: Annotated[float, typer.Option(help="Least score of your own function that is correct.")] = 1.0,
    answer_after: Annotated[
        str | None, typer.Option(help="Grade only what follows the last of these marks, e.g. </think>.")
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Your own function may use the network.")] = False,
    variable: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment variable that your function sees; repeatable.")
    ] = None,
) -> None:
    """Grade responses: the same rows, in order, with status, extracted answer, path, seconds and any score."""
    from rlep.cli.progress import TerminalProgress
    from rlep.config.roles import VerifierConfig
    from rlep.config.settings import section_of
    from rlep.core.types import STATUSES
    from rlep.driver.crashes import function_fault
    from rlep.services.verifier.grade_rows import bounded_lines, grade_rows
    from rlep.services.verifier.grader import configured_verifier

    file = Path("/dev/stdin") if file == Path("-") else file
    unreadable: list[str] = []
    try:
        total = _lines_of(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    with ExitStack() as stack:
        lines = stack.enter_context(file.open(encoding="utf-8-sig", errors="surrogateescape"))
        keys = {"profile": profile, "correct_at": correct_at, "answer_after": answer_after, "network": network}
        config = section_of(VerifierConfig, "verifier", {**keys, "variables": variable or []})
        verifier = stack.enter_context(configured_verifier(config, workers=workers))
        written = sys.stdout if out is None else stack.enter_context(_opened(out, file))
        bars = stack.enter_context(TerminalProgress())
        failures: dict[str, str] = {}
        graded: Counter[str | None] = Counter()
        with bars.phase("grade", total, "rows") as advance:
            for row in grade_rows(bounded_lines(lines), verifier):
                written.write(row.text + "\n")
                graded[row.status] += 1
                if row.error:
                    unreadable.append(f"line {row.line}: {row.error}")
                if row.failure:
                    failures.setdefault(row.failure.partition(":")[0], row.failure)
                advance(1)
        counts: dict[str, int] = {status: graded[status] for status in STATUSES if status in graded}
        bars.note(f"{sum(counts.values())} graded: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    shown = {name: count for name, count in counts.items() if name != "no_answer"}
    if fault := function_fault(profile, shown, list(failures.values())):
        raise VerifierError(fault)
    if unreadable:
        raise UngradedRows(_named(file, unreadable))


def _named(file: Path, unreadable: Sequence[str]) -> str:
    """Name rows without a verdict, at most ``NAMED`` of them."""
    more = [f"and {len(unreadable) - NAMED} more"] if len(unreadable) > NAMED else []
    was = "row was" if len(unreadable) == 1 else "rows were"
    return "\n  ".join([f"{file}: {len(unreadable):,} {was} not graded", *unreadable[:NAMED], *more])


def _lines_of(file: Path) -> int | None:
    """The number of lines; None for a pipe, which can be read but once."""
    with file.open("rb") as rows:
        if not file.is_file():
            return None
        count, last = 0, b"\n"
        for last in iter(lambda: rows.read(1 << 20), b""):
            count += last.count(b"\n")
        return count + (not last.endswith(b"\n"))


def _opened(out: Path, file: Path) -> TextIO:
    """``out``, emptied."""
    if out.exists() and out.samefile(file):
        raise DataError(f"--out {out} is the file that is graded; name another")
    try:
        return out.open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror}") from None
