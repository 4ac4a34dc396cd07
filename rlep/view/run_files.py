"""Run directories as the console finds them. What is missing, unfinished or damaged becomes a note beside the rest."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlep.core.errors import DataError, RlepError
from rlep.core.jsonl import LONGEST_LINE

MARKS = ("events.jsonl", "metrics.jsonl")
"""A directory with one of these is a run's; a model directory has a config.json, too."""
STUDY_MARKS = ("plan.json", "study.json")
"""A directory with one of these is a study's; its runs lie below."""
DEPTH = 3
"""Levels below a given directory that are searched for runs."""
MOST_RUNS = 2000
"""Runs, or studies, in a list."""
MOST_BYTES = 32 * 2**20
"""Of a JSON Lines file: the end of a longer one is read. Also of all that are kept in memory."""
TAIL_BYTES = 2**16
LARGEST = 1e300
"""Number of a file that is read: sums and differences of many still are finite."""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run directory under the name that its address has."""

    name: str
    directory: Path

    def file(self, *parts: str) -> Path:
        """A file of the run. DataError where it leads out of the run, or is a pipe or device, which opening could wait for."""
        path, name = self.directory.joinpath(*parts), "/".join(parts)
        try:
            linked = len(parts) > 1 or path.is_symlink()
            if linked and not path.resolve().is_relative_to(self.directory.resolve()):
                raise DataError(f"{name} is a link out of the run directory and is not read")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise DataError(f"{name} is no regular file and is not read")
        except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
            raise DataError(f"{name} cannot be found: {error}") from None
        return path


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """The readable lines of a file, oldest first, and what is wrong with the others."""

    lines: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepLine:
    """The numbers of one line of ``metrics.jsonl``."""

    step: int
    wall_s: float
    numbers: Mapping[str, float]


_READ: OrderedDict[tuple[Path, int], tuple[tuple[int, int], JsonObjects]] = OrderedDict()
"""(file, bytes from its end) → (size and time of change, what was read)."""
_LOCK = threading.Lock()


def find_runs(directories: Sequence[Path]) -> dict[str, RunPlace]:
    """Name → run, of the directories that are runs and of those below them; links are not followed."""
    return _found(directories, MARKS)


def find_studies(directories: Sequence[Path]) -> dict[str, RunPlace]:
    """Name → study, likewise."""
    return _found(directories, STUDY_MARKS)


def _found(directories: Sequence[Path], marks: Sequence[str]) -> dict[str, RunPlace]:
    found: dict[str, RunPlace] = {}
    for top in directories:
        first = top.resolve().name
        for directory in _below(top, DEPTH, marks):
            parts = [first, *directory.relative_to(top).parts]
            name = base = os.fsencode("~".join(parts)).decode("utf-8", "replace")  # a name may be any bytes
            number = 2
            while name in found:
                name, number = f"{base}~{number}", number + 1
            found[name] = RunPlace(name, directory)
    return found


def newest(places: Sequence[RunPlace]) -> list[RunPlace]:
    """The ``MOST_RUNS`` of them that changed last, in their order."""
    if len(places) <= MOST_RUNS:
        return list(places)
    kept = {place.name for place in sorted(places, key=_changed, reverse=True)[:MOST_RUNS]}
    return [place for place in places if place.name in kept]


def _changed(place: RunPlace) -> int:
    """When its marks did, in nanoseconds."""
    times = [0]
    for name in (*MARKS, *STUDY_MARKS):
        with suppress(OSError):
            times.append(os.lstat(place.directory / name).st_mtime_ns)
    return max(times)


def _below(directory: Path, depth: int, marks: Sequence[str]) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    files = {
        entry.name
        for entry in entries
        if entry.name.endswith((".json", ".jsonl")) and entry.is_file(follow_symlinks=False)
    }
    if not files.isdisjoint(marks):
        yield directory
    if depth and files.isdisjoint(MARKS):  # a run holds no others
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _below(directory / entry.name, depth - 1, marks)


def read_json(run: RunPlace, name: str, most: int = LONGEST_LINE) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A JSON object of a run, of at most so many bytes, and notes where there is none."""
    try:
        path = run.file(name)
        if path.stat().st_size > most:
            return {}, (f"{name} is larger than {most} bytes and is not read",)
        value = from_json(path.read_bytes())
    except FileNotFoundError:
        return {}, (f"{name} is missing",)
    except (OSError, ValueError, RecursionError) as error:
        return {}, (f"{name} cannot be read: {error}",)
    return (value, ()) if isinstance(value, dict) else ({}, (f"{name} is not a JSON object",))


def read_tail(run: RunPlace, name: str, most: int = TAIL_BYTES) -> JsonObjects:
    """The complete lines among the last ``most`` bytes of a JSON Lines file; they are kept where they are many."""
    try:
        path = run.file(name)
        held = path.stat()
        if most <= TAIL_BYTES:
            return _parsed(path, held.st_size, most)
        return _held(path, held.st_size, held.st_mtime_ns, most)
    except FileNotFoundError:
        return JsonObjects((), (f"{name} is missing",))
    except (OSError, ValueError) as error:
        return JsonObjects((), (f"{name} cannot be read: {error}",))


def _held(path: Path, size: int, changed_ns: int, most: int) -> JsonObjects:
    """Lines of this state of the file, kept or read; of a file only the last state is kept."""
    key, state = (path, most), (size, changed_ns)
    with _LOCK:
        if (held := _READ.get(key)) and held[0] == state:
            _READ.move_to_end(key)
            return held[1]
    read = _parsed(path, size, most)
    with _LOCK:
        _READ[key] = (state, read)
        _READ.move_to_end(key)
        while len(_READ) > 1 and sum(min(size, most) for (_, most), ((size, _), _) in _READ.items()) > MOST_BYTES:
            _READ.popitem(last=False)
    return read


def _parsed(path: Path, size: int, most: int) -> JsonObjects:
    with path.open("rb") as file:
        file.seek(max(0, size - most))
        raw = file.read(most)
    notes = []
    if size > most:
        raw = raw.partition(b"\n")[2]
        if most == MOST_BYTES:
            notes.append(f"{path.name} is larger than {most} bytes: its end is shown")
    complete, _, torn = raw.rpartition(b"\n")
    if torn:
        notes.append(f"{path.name}: the last line is unfinished")
    lines, bad = [], 0
    for line in complete.split(b"\n"):
        value = parse_line(line)
        if value is not None:
            lines.append(value)
        elif line:
            bad += 1
    if bad:
        notes.append(f"{path.name}: {bad} damaged or overlong lines are left out")
    return JsonObjects(tuple(lines), tuple(notes))


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """The JSON object of a line of at most ``LONGEST_LINE`` bytes; None for anything else."""
    if not raw or len(raw) > LONGEST_LINE:
        return None
    try:
        value = from_json(raw)
    except ValueError:  # also of a lone surrogate, which Python's own reader takes
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def number_of(value: object) -> float | None:
    """A number within ``LARGEST`` as it is, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST <= value <= LARGEST else None


def section_of(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within an object; an empty one for anything else."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def list_of(value: object) -> list[Any]:
    """A list as it is, an empty one for anything else."""
    return value if isinstance(value, list) else []


def or_note(read: Callable[[], list[Any]]) -> tuple[list[Any], list[str]]:
    """Contents of a file or a pool, or the reason that it cannot be shown."""
    try:
        return read(), []
    except RlepError as error:
        return [], [str(error)]
