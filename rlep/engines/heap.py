"""The C library's heap."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of glibc's options, from malloc.h."""

_LARGEST = 32 * 2**20


def keep_freed_memory() -> None:
    """Let this process keep what it frees, but for blocks above 32 MiB; threads that start later share one heap.

    An update frees nearly all it took and the next takes as much again. By default glibc gives large blocks back to the
    system, which has to clear each of their pages when they are taken anew; so it does with what threads take from heaps of
    their own. C libraries without such options are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_ARENA_MAX, 1)
