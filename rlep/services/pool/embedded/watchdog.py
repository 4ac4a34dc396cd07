"""Runs one redis-server for as long as anybody uses it. A script of its own: standard library only, started with ``-I -S``.

``watchdog.py BINARY CONFIG USERS LOCK_FD``, in the data directory. Whoever uses the server holds a shared lock on the file
``USERS``; the kernel releases it however the user ends. This process waits for an exclusive lock on it: once it has
that, nobody uses the server any more, so it stops it (SIGTERM, then SIGKILL) and ends. It starts a server that died again,
but gives up on one that does not come up; before each start it repairs what a killed one left half written. The server
itself is killed by the kernel should this process be killed.
``LOCK_FD`` is an open file with an exclusive lock: held here and in the server, it says that the directory is served.
"""

import ctypes
import fcntl
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

PR_SET_PDEATHSIG = 1
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
SHORT_LIFE = 2.0  # a server that lived less than this many seconds did not come up
SHORT_LIVES = 3  # that many in a row end the watchdog; one that was killed from outside does not count
RESTART_PAUSE = 0.1  # seconds
BLOCK = 2**20  # bytes read at a time from the end of a file
MULTI, EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"


class ChildChanged(Exception):
    """The server process ended, stopped or went on (raised by the SIGCHLD handler while this process waits)."""


def on_child(_number: int, _frame: FrameType | None) -> None:
    """Interrupt the wait for the users' lock, once."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raise ChildChanged


def on_terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave through the ``finally`` that stops the server."""
    sys.exit(0)


def start(command: list[str], lock: int) -> "subprocess.Popen[bytes]":
    """The server process, which the kernel kills when this process ends."""
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # This process has one thread, so that running Python between fork and exec is safe.
    return subprocess.Popen(command, pass_fds=(lock,), preexec_fn=die_with_parent, stdin=subprocess.DEVNULL)  # noqa: PLW1509


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Let the server write out what it has and end; kill it if it does not."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server.terminate()
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def unused(server: "subprocess.Popen[bytes]", waiting: int) -> bool:
    """Wait until nobody uses the server (True) or it has ended (False)."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, on_child)
            if server.poll() is not None:
                return False
            fcntl.flock(waiting, fcntl.LOCK_EX)
            return True
        except ChildChanged:
            continue


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
            begun = unfinished(content) if content.rfind(MULTI) > content.rfind(EXEC) else None
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
        begin = max(0, end - BLOCK)
        file.seek(begin)
        kept = file.read(end - begin).rstrip(b"\0")
        end = begin + len(kept)
    if kept and end < size:
        file.truncate(end)
        os.fsync(file.fileno())
        sys.stderr.write(f"{name}: cut {size - end} zeros at its end\n")
        sys.stderr.flush()


def damage(directory: Path) -> "tuple[Path, int] | None":
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


def unfinished(content: "mmap.mmap | bytes") -> "int | None":
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


def commands(content: "mmap.mmap | bytes") -> Iterator[tuple[int, bytes]]:
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


def number(content: "mmap.mmap | bytes", at: int, sign: bytes) -> tuple[int, int]:
    """The number in the line that begins here with the sign, and where the next line begins."""
    line = content[at : at + 32]
    digits, ended, _ = line[1:].partition(b"\r\n")
    if line[:1] not in (sign, b"") or (ended and not digits.isdigit()) or (len(line) == 32 and not ended):
        raise ValueError(line)
    if not ended:
        raise EOFError
    return int(digits), at + 1 + len(digits) + 2


def serve(command: list[str], users: Path, lock: int) -> int:
    """Run the server until nobody uses it; the exit status is 0 then, or the server's own when it does not come up."""
    short_lives = 0
    with users.open("w") as waiting:
        while short_lives < SHORT_LIVES:
            cut_unfinished(users.absolute().parent)
            started = time.monotonic()
            server = start(command, lock)
            try:
                if unused(server, waiting.fileno()):
                    return 0
            finally:
                stop(server)
            short = time.monotonic() - started < SHORT_LIFE and server.returncode != -signal.SIGKILL
            short_lives = short_lives + 1 if short else 0
            time.sleep(RESTART_PAUSE)
    return server.returncode or 1


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the starter is nobody's parent: it need not collect this process, and cannot take it along
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_terminate)
    sys.exit(serve(sys.argv[1:3], Path(sys.argv[3]), int(sys.argv[4])))
