"""The append-only file of an embedded Redis: where a kill cut it, and where it is damaged."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_log = logging.getLogger(__name__)
_BLOCK = 2**20  # bytes read at a time from the end of a file
_MULTI, _EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"


class DamagedError(ValueError):
    """The bytes from ``at`` on are not a command."""

    def __init__(self, at: int) -> None:
        super().__init__(f"no command at byte {at}")
        self.at = at


def cut_unfinished(directory: Path) -> None:
    """Cut the append-only file before a transaction that has no end in it: a killed server wrote a part of it only.

    Zeros at its end go first: after a power failure a file may have its length, but not its last bytes. A command ends in
    a line break, so that no command is among them.

    Redis itself cuts the last command, but leaves ``MULTI`` and what follows it. The commands that it appends then belong
    to that transaction at the next start: half of the old one is applied with them, or they are dropped with it
    (fixed in Valkey by github.com/valkey-io/valkey/pull/4342).
    """
    path = append_only_files(directory)[-1]
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as file:
        cut_zeros(file, path.name)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Reading all commands takes seconds: only where the last transaction seems to have no end.
            begun = unfinished(content) if content.rfind(_MULTI) > content.rfind(_EXEC) else None
        if begun is not None:
            file.truncate(begun)
            os.fsync(file.fileno())


def append_only_files(directory: Path) -> list[Path]:
    """The files in the order in which they are loaded; the last one is written to. Redis 7 and newer have several."""
    parts = (directory / "appendonlydir").glob("appendonly.aof.*.aof")
    files = sorted(parts, key=lambda part: (".incr." in part.name, int(part.name.split(".")[2])))
    return files or [directory / "appendonly.aof"]


def cut_zeros(file: BinaryIO, name: str) -> None:
    """Cut the zeros at the end of a file, unless it holds nothing else: the server then says that it is damaged."""
    size = end = file.seek(0, os.SEEK_END)
    kept = b""
    while end and not kept:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        kept = file.read(end - begin).rstrip(b"\0")
        end = begin + len(kept)
    if kept and end < size:
        file.truncate(end)
        os.fsync(file.fileno())
        _log.warning("%s: cut %d zeros at its end", name, size - end)


def damage(directory: Path) -> tuple[Path, int] | None:
    """The first append-only file with bytes that are no command, and where they begin; None where there is none."""
    for path in append_only_files(directory):
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                try:
                    for _ in commands(content):
                        pass
                except DamagedError as error:
                    return path, error.at
                except EOFError:
                    continue  # a cut end, which the server cuts too
    return None


def unfinished(content: mmap.mmap | bytes) -> int | None:
    """Where the transaction begins whose end is missing; None where there is none, or the content is no list of commands."""
    begun = None
    try:
        for start, name in commands(content):
            if name == b"EXEC":
                begun = None
            elif name == b"MULTI" and begun is None:
                begun = start
    except EOFError:
        return begun
    except DamagedError:
        return None  # the server says so
    return begun


def commands(content: mmap.mmap | bytes) -> Iterator[tuple[int, bytes]]:
    """Position and name of each command. Raises ``EOFError`` at one that is cut, ``DamagedError`` at what is none."""
    at = 0
    while at < len(content):
        start, name = at, b""
        try:
            parts, at = number(content, at, b"*")
            for part in range(parts):
                length, at = number(content, at, b"$")
                name = name if part else content[at : at + length]
                at += length + 2
                if content[at - 2 : at] not in (b"\r\n", b"\r", b""):
                    raise ValueError(name)
        except ValueError:
            raise DamagedError(start) from None
        if at > len(content):
            raise EOFError
        yield start, name


def number(content: mmap.mmap | bytes, at: int, sign: bytes) -> tuple[int, int]:
    """The number in the line that begins here with the sign, and where the next line begins."""
    line = content[at : at + 32]
    digits, ended, _ = line[1:].partition(b"\r\n")
    if line[:1] not in (sign, b"") or (ended and not digits.isdigit()) or (len(line) == 32 and not ended):
        raise ValueError(line)
    if not ended:
        raise EOFError
    return int(digits), at + 1 + len(digits) + 2
