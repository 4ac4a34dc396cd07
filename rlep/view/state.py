"""A run in one line: how far it is, and whether it still works."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlep.core.errors import DataError
from rlep.view.record import EvaluationPoint, evaluation_of
from rlep.view.run_files import MOST_RUNS, RunPlace, number_of, read_json, read_tail, section_of
from rlep.view.steps import fields_of

LATEST_S = 120.0
"""A run without an end in its events counts as running while its files change at least this often …"""
STEPS_A_CHANGE = 5
"""… or this many of its own steps."""
_FILES = ("metrics.jsonl", "events.jsonl", "config.json", "manifest.json", "evaluations.jsonl")
_FOLLOWED = ("metrics.jsonl", "events.jsonl", "evaluations.jsonl", "rollouts", "timeline.json")
"""Files shown by a page that follows a run."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run's line in the list."""

    name: str
    label: str
    command: str
    state: str
    steps: int
    planned: int | None
    held_out: EvaluationPoint | None
    """The last evaluation, of all data sources where there are several."""
    accuracy: float | None
    reward: float | None
    changed: float
    """Seconds since the epoch; 0: never."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A run's line, as of some sizes and times of its files."""

    files: tuple[tuple[int, int, int] | None, ...]
    line: RunLine
    """Its state holds while nothing changes; ``running`` for one that has no end in its events."""
    most_idle_s: float
    host: object
    """The machine of the driver, as the manifest names it."""


_KNOWN: dict[Path, _Known] = {}
_LOCK = threading.Lock()
READ_ERRORS = (OSError, ValueError, ArithmeticError, RecursionError)
"""Of files that anybody may have written, and of numbers in them."""


def summaries_of(places: Sequence[RunPlace]) -> tuple[list[RunLine], list[str]]:
    """Lines of runs, and a note in place of one that cannot be made: the others are listed whatever a run's files hold."""
    lines, notes = [], []
    for place in places:
        try:
            lines.append(summary_of(place))
        except READ_ERRORS as error:
            notes.append(f"{place.name} is not listed: {error!r:.200}")
    return lines, notes


def summary_of(place: RunPlace) -> RunLine:
    """From the configuration and the ends of the logs, which are read again only where they changed."""
    files = tuple(_seen(f"{place.directory}/{name}") for name in _FILES)
    with _LOCK:
        known = _KNOWN.get(place.directory)
    if known is None or known.files != files or known.line.name != place.name:
        known = _read(place, files)
        with _LOCK:
            if len(_KNOWN) >= 2 * MOST_RUNS:
                _KNOWN.clear()
            _KNOWN[place.directory] = known
    line = known.line
    if line.state == "interrupted" and complete_mark(place.directory).exists():
        return replace(line, state="finished")  # by a study, at its budget
    if line.state != "running":
        return line
    regular = known.files[2] is not None  # config.json
    if regular and known.host == platform.node() and is_abandoned(place.directory):
        return replace(line, state="dead")
    return replace(line, state="silent") if time.time() - line.changed >= known.most_idle_s else line


def complete_mark(directory: Path) -> Path:
    """The file that a study leaves beside a run that it needs no more of: at its end, or at the budget."""
    whole = directory.resolve()  # "." has no name
    return whole.parent / f"{whole.stem}.complete"


def is_abandoned(directory: Path) -> bool:
    """True where no process of this machine holds a run's lock, as its driver does; False where that cannot be told.

    The kernel's list of locks is read, and the lock itself not tried: a driver that starts meanwhile would be refused.
    """
    try:
        with (directory / "config.json").open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)  # some cluster file systems have no locks
        return f":{(directory / 'events.jsonl').stat().st_ino} " not in Path("/proc/locks").read_text()
    except OSError:
        return False


def mark_of(place: RunPlace) -> str:
    """Changes when the files that a page follows do, or the run's state."""
    found: list[object] = [summary_of(place).state]
    for name in _FOLLOWED:
        try:
            held = place.file(name).stat()
            found += [held.st_size, held.st_mtime_ns]
        except (OSError, DataError):
            found.append(None)
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


def _read(place: RunPlace, files: tuple[tuple[int, int, int] | None, ...]) -> _Known:
    config, _ = read_json(place, "config.json")
    manifest, _ = read_json(place, "manifest.json")
    newest = filter(None, map(fields_of, reversed(read_tail(place, "metrics.jsonl").lines)))
    step, _, metrics = next(newest, (-1, 0.0, {}))
    settings = section_of(config, "run")
    planned = settings.get("steps")
    line = RunLine(
        name=place.name,
        label=str(settings.get("name", place.name)),
        command=str(manifest.get("command", "–")),
        state=_state(read_tail(place, "events.jsonl").lines),
        steps=step + 1,
        planned=planned if type(planned) is int and number_of(planned) is not None else None,
        held_out=next(filter(None, map(evaluation_of, reversed(read_tail(place, "evaluations.jsonl").lines))), None),
        accuracy=number_of(metrics.get("rollout/accuracy")),
        reward=number_of(metrics.get("rollout/reward")),
        changed=max((held[1] / 1e9 for held in files[:2] if held), default=0.0),
    )
    seconds = number_of(metrics.get("time/step")) or 0.0
    return _Known(files, line, max(LATEST_S, STEPS_A_CHANGE * seconds), manifest.get("host"))


def _seen(path: str) -> tuple[int, int, int] | None:
    """Size, time of change and inode of a file; None where there is none, or a link."""
    try:
        held = os.lstat(path)
    except OSError:
        return None
    return (held.st_size, held.st_mtime_ns, held.st_ino) if stat.S_ISREG(held.st_mode) else None


def _state(events: Sequence[Mapping[str, Any]]) -> str:
    ends = {"run_finished": "finished", "run_interrupted": "interrupted", "run_failed": "failed"}
    begun = ("run_started", "run_resumed", "collection_finished", *ends)
    last = next((line["event"] for line in reversed(events) if line.get("event") in begun), None)
    if last == "collection_finished":
        return "finished"
    return ends.get(str(last), "running")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``section.key`` → value as text."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = str(value)
    return found
