"""Private directories that name their owner, so that those of killed owners can be told and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only private directories are made in it


def private_directory(kind: str, *, in_memory: bool = False) -> Path:
    """A new directory ``rlep-<kind>-<user>-<pid>-…`` of mode 700; those of the same kind whose owner is dead are removed.

    ``in_memory``: in shared memory, where the machine has some.
    """
    shared = in_memory and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    prefix = f"rlep-{kind}-{os.getuid()}-"
    for old in parent.glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
