"""The C library's heap, and the memory that this process has."""

from __future__ import annotations

import ctypes
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of glibc's options, from malloc.h."""


def keep_freed_memory(limit: int | None = 64 * 2**20, *, one_arena: bool = False) -> None:
    """Let glibc keep up to ``limit`` bytes of freed memory (None: all of it), except blocks above 32 MiB.

    By default glibc gives large blocks back to the system, which clears each page when it is taken anew: a pool sample of
    512 x 2 responses took 29 ms over gRPC and takes 15, an update of the learner 8,000 page faults and takes 10.
    ``one_arena``: threads that start later share one heap. C libraries without ``mallopt`` are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_TRIM_THRESHOLD, -1 if limit is None else limit)
        if one_arena:
            mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Have glibc give every freed block above 16 KiB back at once, so that resident memory is memory in use.

    It takes back what ``keep_freed_memory`` said, and is for measurements.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            library.mallopt(option, 16 * 2**10)
        library.malloc_trim(0)


def resident(key: str = "VmRSS") -> int:
    """Resident memory of this process in bytes, now or at its peak (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
