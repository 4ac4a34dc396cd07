"""Private directories that name their owner, so that those of killed owners can be told and removed; files of this user."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rlep.core.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux, without the final zero."""
RANDOM_BYTES = 8
"""Suffix that ``mkdtemp`` appends."""


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def private_directory(
    kind: str, *, in_memory: bool = False, deepest: int = 0, remove: Callable[[Path], None] = _remove
) -> Path:
    """A new directory ``rlep-<kind>-<user>-<pid>-…`` of mode 700; those of the same kind whose owner is dead are removed.

    ``in_memory``: in shared memory, where the machine has some; it is locked, for containers may share that and not their pids.
    ``deepest``: bytes that the path of the deepest socket in it adds to its own; where a long ``TMPDIR`` is too long for them,
    the directory is in ``/tmp``. ``remove``: how one of this kind is removed.
    """
    shared = in_memory and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    prefix = f"rlep-{kind}-{os.getuid()}-"
    own = len(f"/{prefix}{os.getpid()}-") + RANDOM_BYTES
    if deepest and len(os.fsencode(parent)) + own + deepest > SOCKET_PATH_BYTES:
        parent = Path("/tmp")  # noqa: S108 - only private directories are made in it
    return directory_below(parent, prefix, remove, locked=shared)


def directory_below(
    parent: Path, prefix: str, remove: Callable[[Path], None] = _remove, *, locked: bool = False
) -> Path:
    """A new directory ``<prefix><pid>-…`` of mode 700 in ``parent``; those of the same prefix whose owner is dead are removed.

    ``locked``: it has its name only when it is locked, for others may not see that its owner lives.
    """
    for old in parent.glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)) and _is_own(old) and not _is_locked(old):
            remove(old)
    made = Path(tempfile.mkdtemp(prefix=f"{'.' * locked}{prefix}{os.getpid()}-", dir=parent))
    if not locked:
        return made
    with suppress(OSError):  # a file system without such locks
        fcntl.flock(os.open(made, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)  # until this process ends
    return made.rename(parent / made.name[1:])


def _is_own(directory: Path) -> bool:
    """Tell whether it is a directory of this user's that nobody else could fill: its list of files is believed."""
    try:
        held = directory.lstat()
        check_own(directory, held)
    except (OSError, ConfigError):
        return False
    return stat.S_ISDIR(held.st_mode)


def _is_locked(directory: Path) -> bool:
    """Tell whether somebody holds a directory."""
    try:
        looked = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(looked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(looked)
    return False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def check_own(path: Path, held: os.stat_result, *, others: int = 0o022) -> None:
    """Refuse what is not this user's, or what others may do with it: ``others`` are the mode's bits that must be off.

    ``held``: of the open file, or of the path without following links. Raises ``ConfigError``.
    """
    if held.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to user {held.st_uid}, not to you: it is not trusted")
    if held.st_mode & others:
        what = "change" if held.st_mode & others & 0o022 else "read"
        remedy = "700" if stat.S_ISDIR(held.st_mode) else "600"
        raise ConfigError(
            f"{path} has mode {held.st_mode & 0o777:o}: others can {what} it, so it is not trusted. If what it holds is yours, "
            f"chmod {remedy} {path}"
        )


def read_own(path: Path, *, most: int, others: int = 0o022) -> str:
    """The text of a regular file that is this user's (``check_own``), no link, and has at most ``most`` bytes.

    Raises ``ConfigError`` where it is not so, ``OSError`` where it cannot be read.
    """
    return read_regular(path, most=most, check=lambda held: check_own(path, held, others=others))


def read_regular(path: Path, *, most: int, check: Callable[[os.stat_result], None] | None = None) -> str:
    """The text of a regular file that is no link and has at most ``most`` bytes; ``check`` sees its status before it is read.

    Raises ``ConfigError`` where it is not so, ``OSError`` where it cannot be read.
    """
    with open_regular(path) as file:
        if check is not None:
            check(os.fstat(file.fileno()))
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ConfigError(f"{path} has more than {most} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from None


def open_regular(path: Path, how: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file that is no link. Raises ``ConfigError`` for anything else, ``OSError`` as ``open``."""
    try:
        descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a link, which is not followed") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is no regular file")
    return os.fdopen(descriptor, "a+b" if how & os.O_APPEND else "rb", buffering=0 if how & os.O_APPEND else -1)


def own_directory(path: Path) -> None:
    """Make a directory of mode 700, or give this mode to one that is there, so that nobody else changes it from now on.

    Raises ``ConfigError`` where it is a link or another user's, ``OSError`` where it cannot be made.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise ConfigError(f"{path} is a link or a file, no directory: nothing is written there") from None
    try:
        check_own(path, os.fstat(descriptor), others=0)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def append_to(path: Path) -> BinaryIO:
    """Open a file to append to, and make it if needed; a link is not followed. Raises as ``open_regular``."""
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def save_logs(source: Path, target: Path) -> None:
    """Copy the regular files below ``source`` to ``target``: content in files of mode 600, and directories of mode 700.

    Links of ``source`` are left out, and files of ``target`` replaced. Where a disk is full, what has room is kept; then raises
    its ``OSError``, or ``ConfigError`` as ``own_directory`` does.
    """
    own_directory(target)
    failed: OSError | None = None
    for folder, folders, names in os.walk(source):
        place = target / Path(folder).relative_to(source)
        for name in names:
            try:
                _copy(Path(folder, name), place / name)
            except OSError as error:
                failed = failed or error
        folders[:] = [name for name in folders if not Path(folder, name).is_symlink()]
        for name in folders:
            own_directory(place / name)
    if failed is not None:
        raise failed


def _copy(log: Path, copy: Path) -> None:
    with suppress(ConfigError), open_regular(log) as source:  # a link, a socket
        copy.unlink(missing_ok=True)
        descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as target:
                shutil.copyfileobj(source, target)
        except OSError:
            copy.unlink()
            raise
