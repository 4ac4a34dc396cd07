"""The append-only files of an embedded Redis: which there are, their commands, where a kill cut one, where one is damaged."""

from __future__ import annotations

import logging
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_log = logging.getLogger(__name__)
_BLOCK = 2**20  # bytes read at a time from the end of a file
_MULTI, _EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"
_PART = re.compile(r"appendonly\.aof\.([0-9]+)\.(base|incr)\.aof")
_WORDS, _LENGTH = re.compile(rb"\*([1-9][0-9]{0,8})\r\n"), re.compile(rb"\$(0|[1-9][0-9]{0,9})\r\n")
_BEGINNING = re.compile(rb"[*$]?[0-9]{0,10}\r?")
_LONGEST_HEAD = 16


class Command(NamedTuple):
    """A whole command of an append-only file."""

    start: int
    """Its first byte."""
    name: bytes
    """In capitals."""
    arguments: list[tuple[int, int]]
    """Bounds of each in the file."""
    broken: bool
    """A word has no line break after it: Redis does not look, but writes one."""


class DamagedError(ValueError):
    """The bytes from ``at`` on are no command of Redis': a server refuses the file there."""

    def __init__(self, at: int) -> None:
        super().__init__(f"no command at byte {at}")
        self.at = at


class ReadOtherwiseError(DamagedError):
    """Bytes that Redis never writes, and reads otherwise than one expects: ``*+3 x`` as ``*3``, a line with ``#`` not at all."""


def cut_unfinished(directory: Path) -> None:
    """Cut the append-only file before a transaction that has no end in it: a killed server wrote a part of it only.

    Zeros at its end go first: after a power failure a file may have its length, but not its last bytes. A command ends in
    a line break, so that no command is among them.

    Redis itself cuts the last command, but leaves ``MULTI`` and what follows it. The commands that it appends then belong
    to that transaction at the next start: half of the old one is applied with them, or they are dropped with it
    (fixed in Valkey by github.com/valkey-io/valkey/pull/4342).
    """
    files = append_only_files(directory)
    if not files or not files[-1].stat().st_size:
        return
    path = files[-1]
    with path.open("r+b") as file:
        cut_zeros(file, path.name)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Reading all commands takes seconds: only where the last transaction seems to have no end.
            begun = unfinished(content) if content.rfind(_MULTI) > content.rfind(_EXEC) else None
        if begun is not None:
            file.truncate(begun)
            os.fsync(file.fileno())


def append_only_files(directory: Path) -> list[Path]:
    """The files that are there, in the order in which they are loaded; the last is written to. Redis 7 and newer have parts."""
    folder = directory / "appendonlydir"
    named = [(part, _PART.fullmatch(part.name)) for part in (folder.iterdir() if folder.exists() else ())]
    parts = [(found[2] == "incr", int(found[1]), part) for part, found in named if found]
    first = directory / "appendonly.aof"
    return [first] * first.exists() + [part for *_, part in sorted(parts)]


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
        if path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                try:
                    for command in commands(content):
                        if command.broken:
                            return path, command.start
                except DamagedError as error:
                    return path, error.at
                except EOFError:
                    continue  # a cut end, which the server cuts too
    return None


def unfinished(content: mmap.mmap | bytes) -> int | None:
    """Where the transaction begins whose end is missing; None where there is none, or the content is no list of commands."""
    begun = None
    try:
        for command in commands(content):
            if command.broken:
                return None
            if command.name == b"EXEC":
                begun = None
            elif command.name == b"MULTI" and begun is None:
                begun = command.start
    except EOFError:
        return begun
    except DamagedError:
        return None  # the server says so
    return begun


def commands(content: mmap.mmap | bytes) -> Iterator[Command]:
    """Every whole command, in order.

    Raises ``EOFError`` at one that is cut, ``DamagedError`` where a server refuses the file, ``ReadOtherwiseError`` where it
    would read what Redis does not write.
    """
    at, end = 0, len(content)
    while at < end:
        start, words, broken = at, list[tuple[int, int]](), False
        if content[at] not in b"*#":
            raise DamagedError(start)
        count, at = _number(content, at, start, _WORDS)
        while len(words) < count and at < end:
            if content[at] != ord("$"):
                raise DamagedError(start)
            length, at = _number(content, at, start, _LENGTH)
            words.append((at, at + length))
            at += length + 2  # a server does not look at these two bytes
            broken |= at <= end and content[at - 2 : at] != b"\r\n"
        if len(words) < count or at > end:
            raise EOFError
        yield Command(start, content[slice(*words[0])].upper(), words[1:], broken)


def _number(content: mmap.mmap | bytes, at: int, start: int, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    """The number that begins here, and where what it counts begins."""
    if found := pattern.match(content, at):
        return int(found[1]), found.end()
    if len(content) - at < _LONGEST_HEAD and _BEGINNING.fullmatch(content[at:]):
        raise EOFError
    raise ReadOtherwiseError(start)
