"""Private directories that name their owner, so that those of killed owners can be told and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux, without the final zero."""
RANDOM_BYTES = 8
"""What ``mkdtemp`` appends."""


def private_directory(kind: str, *, in_memory: bool = False, deepest: int = 0) -> Path:
    """A new directory ``rlep-<kind>-<user>-<pid>-…`` of mode 700; those of the same kind whose owner is dead are removed.

    ``in_memory``: in shared memory, where the machine has some. ``deepest``: bytes that the path of the deepest socket in
    it adds to its own; where a long ``TMPDIR`` leaves no room for them, the directory is in ``/tmp``.
    """
    shared = in_memory and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    prefix = f"rlep-{kind}-{os.getuid()}-"
    own = len(f"/{prefix}{os.getpid()}-") + RANDOM_BYTES
    if deepest and len(os.fsencode(parent)) + own + deepest > SOCKET_PATH_BYTES:
        parent = Path("/tmp")  # noqa: S108 - only private directories are made in it
    for old in parent.glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
