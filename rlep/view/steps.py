"""``metrics.jsonl`` as columns: a file is read once, then only what was appended to it."""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rlep.core.jsonl import LONGEST_LINE
from rlep.view.run_files import MOST_BYTES, RunPlace, StepLine, number_of, parse_line

MOST_CELLS = 16 * 2**20
"""Numbers of all files that are kept, 8 bytes each; the files that were not asked for longest go first."""
MOST_COLUMNS = 2**14
"""Metrics of one file."""
MOST_ENTRIES = 64
"""Entries of a list that are read; each is a column, ``NAME[0]`` and on."""
_CHECKED = 256
"""Bytes before the end of what was read that must still be there: else the file was cut and written anew."""

Fields = tuple[int, float, Mapping[str, Any]]
"""Step, seconds of work so far, and metrics of a line."""


@dataclass(slots=True)
class StepTable:
    """The numbers of ``metrics.jsonl``, oldest step first. Only ever appended to, the steps last."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    wall_s: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    """Name → values of all steps, NaN where one has none."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def made(self) -> int:
        """Steps that the run has made by the last line."""
        return self.steps[-1] + 1 if self.steps else 0

    def points(self, name: str) -> tuple[tuple[float, float], ...]:
        """(step, value) of the steps that have one."""
        found = zip(self.steps, self.columns.get(name, ()), strict=False)
        return tuple((step, value) for step, value in found if value == value)  # noqa: PLR0124 -- not NaN

    def entries(self, name: str) -> list[str]:
        """The columns of a list, in order."""
        return [column for at in range(MOST_ENTRIES) if (column := f"{name}[{at}]") in self.columns]

    def line(self, at: int) -> StepLine:
        """One step's numbers."""
        found = {name: column[at] for name, column in list(self.columns.items())}
        numbers = {name: value for name, value in found.items() if not math.isnan(value)}
        return StepLine(self.steps[at], self.wall_s[at], numbers)

    def lines(self, first: int, last: int) -> list[StepLine]:
        """Lines from ``first`` up to, and without, ``last``."""
        return [self.line(at) for at in range(max(0, first), min(last, len(self)))]

    def append(self, fields: Fields) -> bool:
        """Add a step; what is no number is left out. False where it would make the table too large: it is not added."""
        step, wall_s, metrics = fields
        held, columns = len(self.steps), self.columns
        numbers = _numbers(metrics)
        wide = len(columns) + sum(name not in columns for name in numbers)
        if wide > MOST_COLUMNS or wide * (held + 1) > MOST_CELLS:
            return False
        for name, number in numbers.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = array("d", [math.nan]) * held
            column.append(number)
        if len(numbers) < len(columns):
            for column in columns.values():
                if len(column) == held:
                    column.append(math.nan)
        self.wall_s.append(wall_s)
        self.steps.append(step)
        return True


@dataclass(slots=True)
class _Kept:
    """The part of a file that was read."""

    inode: int
    begin: int
    """Where its first line begins."""
    end: int
    """Behind its last complete line."""
    last: bytes = b""
    """The bytes before ``end``."""
    bad: int = 0
    table: StepTable = field(default_factory=StepTable)

    @property
    def cells(self) -> int:
        return sum(map(len, self.table.columns.values()))


_KEPT: OrderedDict[Path, _Kept] = OrderedDict()
_LOCK = threading.Lock()


def read_steps(run: RunPlace, *, whole: bool = False) -> tuple[StepTable, tuple[str, ...]]:
    """The numbers of ``metrics.jsonl``, and notes on what could not be read.

    ``whole``: of a file larger than ``MOST_BYTES`` not only the end, read anew every time.
    """
    name = "metrics.jsonl"
    try:
        path = run.file(name)
        with path.open("rb") as file:
            if whole:
                return _whole(path, file)
            with _LOCK:
                return _updated(path, file)
    except FileNotFoundError:
        return StepTable(), (f"{name} is missing",)
    except (OSError, ValueError) as error:
        return StepTable(), (f"{name} cannot be read: {error}",)


def _updated(path: Path, file: BinaryIO) -> tuple[StepTable, tuple[str, ...]]:
    size, inode = file.seek(0, 2), path.stat().st_ino
    kept = _KEPT.get(path)
    if kept is None or not _goes_on(kept, file, size, inode):
        begin = max(0, size - MOST_BYTES)
        file.seek(begin)
        begin += len(file.readline(LONGEST_LINE)) if begin else 0
        kept = _KEPT[path] = _Kept(inode, begin, begin)
    torn = _read_on(kept, file, size - kept.end)
    file.seek(max(kept.begin, kept.end - _CHECKED))
    kept.last = file.read(kept.end - file.tell())
    _KEPT.move_to_end(path)
    while len(_KEPT) > 1 and sum(kept.cells for kept in _KEPT.values()) > MOST_CELLS:
        _KEPT.popitem(last=False)
    return kept.table, tuple(_notes(path.name, kept, torn=bool(torn)))


def _whole(path: Path, file: BinaryIO) -> tuple[StepTable, tuple[str, ...]]:
    kept, end, torn = _Kept(0, 0, 0), -1, b""
    while kept.end > end:
        end = kept.end
        torn = _read_on(kept, file, MOST_BYTES)
    return kept.table, tuple(_notes(path.name, kept, torn=bool(torn)))


def _read_on(kept: _Kept, file: BinaryIO, most: int) -> bytes:
    """Take the lines that are complete within the next bytes; the bytes behind them."""
    file.seek(kept.end)
    complete, newline, torn = file.read(most).rpartition(b"\n")
    for line in complete.split(b"\n") if complete else ():
        found = _line_of(line)
        added = found is not None and kept.table.append(found)
        if line and not added:
            kept.bad += 1
    kept.end += len(complete) + len(newline)
    return torn


def _goes_on(kept: _Kept, file: BinaryIO, size: int, inode: int) -> bool:
    """True for the file that was read, with lines appended or none."""
    if kept.inode != inode or size < kept.end or size - kept.begin > 2 * MOST_BYTES:
        return False
    file.seek(kept.end - len(kept.last))
    return file.read(len(kept.last)) == kept.last


def _notes(name: str, kept: _Kept, *, torn: bool) -> Iterator[str]:
    if kept.begin:
        yield f"{name} is larger than {MOST_BYTES} bytes: its end is shown"
    if torn:
        yield f"{name}: the last line is unfinished"
    if kept.bad:
        yield f"{name}: {kept.bad} damaged or overlong lines are left out"


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Column → number of a line."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if type(value) is list:
            found |= {f"{name}[{at}]": number_of(entry) or 0.0 for at, entry in enumerate(value[:MOST_ENTRIES])}
        elif (number := number_of(value)) is not None:
            found[name] = number
    return found


def _line_of(raw: bytes) -> Fields | None:
    return fields_of(parse_line(raw) or {})


def fields_of(line: Mapping[str, Any]) -> Fields | None:
    """The parts of a line of ``metrics.jsonl``; None where it has no step or no metrics."""
    step, metrics = line.get("step"), line.get("metrics")
    if type(step) is not int or not -(2**63) <= step < 2**63 or not isinstance(metrics, dict):
        return None
    return step, float(number_of(line.get("wall_s")) or 0.0), metrics
