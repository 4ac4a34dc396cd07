"""The files of an embedded Redis' directory, checked before a server reads it.

Redis runs what its append-only file says: ``MODULE LOAD`` loads a library, ``EVAL`` a script, ``CONFIG SET`` moves its files.
A directory that was copied or unpacked may say anything. So the file may hold the commands of ``COMMANDS`` and no others,
which only change data, and its files are regular ones of this user. The scripts of a pool are blanked: a client sends its
own before it uses them.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path

from rlep.core.errors import ConfigError, PoolError
from rlep.core.paths import check_own
from rlep.services.pool.embedded.append_only import DamagedError, ReadOtherwiseError, append_only_files, commands

COMMANDS = frozenset(
    b"DEL EXEC HDEL HINCRBY HMSET HSET HSETNX LTRIM MULTI PEXPIRE PEXPIREAT RPUSH SADD SELECT SET SREM UNLINK".split()
)
"""Commands that a pool's scripts and Redis itself (expiry, rewriting) append; none runs code, opens a file or connects."""
HARMLESS = (
    "if it is yours, the rlep that wrote it exports it (rlep pool export), and an export can be imported anywhere"
)

_LISTED = re.compile(
    r"file appendonly\.aof\.[0-9]+\.(base|incr)\.aof seq [0-9]+ type [bhi]( startoffset [0-9]+)?( endoffset [0-9]+)?"
)
_LARGEST_MANIFEST = 1 << 20


def check_files(directory: Path) -> None:
    """Refuse links, and what is not this user's or what others could have changed. Raises ``ConfigError`` naming the file."""
    held = directory.stat()
    mode = held.st_mode
    if held.st_uid != os.geteuid():
        raise ConfigError(f"pool directory {directory} belongs to user {held.st_uid}, not to you: it is not opened")
    places = [place for place in (directory, directory / "appendonlydir") if place.exists()]
    entries = [entry for place in places for entry in os.scandir(place)]
    if entries and mode & 0o022:
        raise ConfigError(
            f"pool directory {directory} has mode {mode & 0o777:o}: others could change what it holds, so it is not opened. If "
            f"it is yours, chmod 700 {directory}"
        )
    for entry in entries:
        try:
            held = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # a socket that its owner has just removed
            continue
        if not any(kind(held.st_mode) for kind in (stat.S_ISREG, stat.S_ISSOCK, stat.S_ISDIR)):
            raise ConfigError(f"{entry.path} is a link or no regular file, which an embedded pool does not follow")
        # Redis makes its socket of mode 700 after the fact; what is in a directory that nobody enters is private anyway.
        check_own(Path(entry.path), held, others=0o022 if mode & 0o011 and not stat.S_ISSOCK(held.st_mode) else 0)


def check_append_only(directory: Path) -> None:
    """Refuse an append-only file that could make the server do more than change data; blank the scripts in it.

    Nobody may serve the directory meanwhile. Raises ``PoolError`` naming file and command.
    """
    _check_manifest(directory / "appendonlydir" / "appendonly.aof.manifest")
    for path in append_only_files(directory):
        if not path.stat().st_size:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            if content[:1] not in (b"*", b"\0"):
                raise PoolError(f"{path} does not begin with a command, as rlep's do: it is not loaded; {HARMLESS}")
            try:
                for _, name, arguments, _ in commands(content):
                    if name == b"SCRIPT":
                        _blank(content, arguments)
                    elif name not in COMMANDS:
                        shown = name.decode("ascii", "replace")
                        raise PoolError(
                            f"{path} holds the command {shown!r:.40}, which no pool writes: it is not loaded; {HARMLESS}"
                        )
            except ReadOtherwiseError as error:
                raise PoolError(
                    f"{path} is not written as Redis does, at byte {error.at}: it is not loaded; {HARMLESS}"
                ) from None
            except (DamagedError, EOFError):
                continue  # a server ends there as well, or the end is repaired


def _check_manifest(path: Path) -> None:
    if not path.exists():
        return
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise PoolError(f"{path} has {path.stat().st_size} bytes; at most {_LARGEST_MANIFEST}")
    for line in path.read_bytes().decode("ascii", "replace").splitlines():
        if not _LISTED.fullmatch(line):
            raise PoolError(f"{path} lists {line!r:.80}, which rlep's do not: it is not loaded; {HARMLESS}")


def _blank(content: mmap.mmap, arguments: list[tuple[int, int]]) -> None:
    """Replace the text of ``SCRIPT LOAD`` by spaces, an empty script. Other ``SCRIPT`` commands run nothing."""
    words = [content[slice(*bounds)] for bounds in arguments]
    if words[:1] and words[0].upper() == b"LOAD" and len(words) == 2 and words[1].strip(b" "):
        start, stop = arguments[1]
        content[start:stop] = b" " * (stop - start)
