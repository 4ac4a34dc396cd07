"""Append-only files of JSON objects, one a line: durable, safe to read while they are written, cut clean on restart."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rlep.core.errors import DataError
from rlep.core.paths import append_to

LONGEST_LINE = 1 << 20
"""Bytes."""


class JsonLines:
    """A JSONL file that one process writes; each line is on disk when ``append`` returns.

    Opening drops a torn last line (a writer killed in the middle of it). A second writer gets a DataError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = append_to(path)
        self._lock = threading.Lock()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise DataError(f"{path} is being written by another process: is this run already running?") from error
        except OSError:
            pass  # some cluster file systems have no locks; the file itself works there
        self._file.seek(0)
        self._cut(self._file.read().rfind(b"\n") + 1)

    def append(self, line: Mapping[str, object]) -> None:
        """Write one line; ValueError for NaN and infinity, TypeError for what is not JSON, OSError with the file's name."""
        text = json.dumps(line, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            size = os.fstat(self._file.fileno()).st_size
            try:
                self._write(text.encode() + b"\n")
            except OSError as error:
                self._cut(size)  # a full disk must not leave half a line for the next one to continue
                raise OSError(error.errno, error.strerror, str(self.path)) from None

    def truncate_from(self, step: int) -> int:
        """Drop the first line of step ``step`` or later and all that follow it; how many they were. Atomic."""
        with self._lock:
            self._file.seek(0)
            lines = self._file.read().splitlines(keepends=True)
            kept = next((i for i, raw in enumerate(lines) if _step_of(self.path, i, raw) >= step), len(lines))
            self._cut(sum(map(len, lines[:kept])))
        return len(lines) - kept

    def close(self) -> None:
        """Give the file free for another writer."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        written = self._file.write(line)
        if written != len(line):
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes written", str(self.path))
        os.fsync(self._file.fileno())

    def _cut(self, size: int) -> None:
        if os.fstat(self._file.fileno()).st_size != size:
            os.ftruncate(self._file.fileno(), size)
            os.fsync(self._file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file, also of one being written; DataError naming the line that is not JSON."""
    complete = path.read_bytes().rpartition(b"\n")[0]
    return [_parsed(path, i, raw) for i, raw in enumerate(complete.split(b"\n")) if raw]


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a JSONL file, also of one being written; empty where there is none, or no file.

    Lines have at most 1 MiB. DataError where it is not JSON.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
            lines = file.read().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return {}
    return _parsed(path, -1, lines[-1]) if lines else {}


def _parsed(path: Path, index: int, raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise DataError(f"{path}: {_place(index)} is not JSON: {error}") from error
    if not isinstance(line, dict):
        raise DataError(f"{path}: {_place(index)} is not a JSON object")
    return line


def _place(index: int) -> str:
    return "the last line" if index < 0 else f"line {index + 1}"


def _step_of(path: Path, index: int, raw: bytes) -> int:
    step = _parsed(path, index, raw).get("step")
    return step if isinstance(step, int) else -1
