"""Private directories that name their owner, so that those of killed owners can be told and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux, without the final zero."""
RANDOM_BYTES = 8
"""What ``mkdtemp`` appends."""


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def private_directory(
    kind: str, *, in_memory: bool = False, deepest: int = 0, remove: Callable[[Path], None] = _remove
) -> Path:
    """A new directory ``rlep-<kind>-<user>-<pid>-…`` of mode 700; those of the same kind whose owner is dead are removed.

    ``in_memory``: in shared memory, where the machine has some. ``deepest``: bytes that the path of the deepest socket in
    it adds to its own; where a long ``TMPDIR`` is too long for them, the directory is in ``/tmp``. ``remove``: how one of
    this kind is removed.
    """
    shared = in_memory and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    prefix = f"rlep-{kind}-{os.getuid()}-"
    own = len(f"/{prefix}{os.getpid()}-") + RANDOM_BYTES
    if deepest and len(os.fsencode(parent)) + own + deepest > SOCKET_PATH_BYTES:
        parent = Path("/tmp")  # noqa: S108 - only private directories are made in it
    return directory_below(parent, prefix, remove)


def directory_below(parent: Path, prefix: str, remove: Callable[[Path], None] = _remove) -> Path:
    """A new directory ``<prefix><pid>-…`` of mode 700 in ``parent``; those of the same prefix whose owner is dead are removed."""
    for old in parent.glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            remove(old)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
