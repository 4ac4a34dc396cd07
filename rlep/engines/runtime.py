"""The private directory of one sampler's sockets and rendezvous files, and what its workers share in memory.

Tensor-parallel workers talk through files in ``/dev/shm``. When they are killed, with whatever would have removed the
files (Ray kills all processes of an actor at once), those stay. So the directory lists them, and names its owner: the
next sampler that gets a directory beside it removes both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only what a sampler's own processes made is removed
_KINDS = ("psm_*", "vllm_dist_*")
"""Names that Python and vLLM give such files."""
_LIST = "shared-memory"
_LONGEST_TEMPORARY = 28
"""Bytes of a directory for temporary files that leave room for sockets, with the longest user and process ids."""


def make_runtime(parent: Path | None) -> Path:
    """A new directory of mode 700 below ``parent``; those beside it with a dead owner are removed.

    ``parent`` is this user's own, so a short name does. Without one the directory is in the system's, or in ``/tmp`` where
    ``TMPDIR`` is too long for sockets.
    """
    home, prefix = parent, "sampler-"
    if home is None:
        home, prefix = Path(tempfile.gettempdir()), f"rlep-sampler-{os.getuid()}-"
        home = home if len(os.fsencode(home)) <= _LONGEST_TEMPORARY else Path("/tmp")  # noqa: S108 - private below it
    for old in home.glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            remove_runtime(old)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=home))


def list_shared_memory(runtime: Path) -> None:
    """Note what this process's descendants share in memory now; called when all of them are up."""
    mapped: set[str] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
            mapped |= {line.split(maxsplit=5)[-1].strip() for line in maps.splitlines()}
    names = [path.name for kind in _KINDS for path in _SHARED_MEMORY.glob(kind) if str(path) in mapped]
    (runtime / _LIST).write_text("\n".join(names))


def remove_runtime(runtime: Path) -> None:
    """Remove the directory, and from memory what it lists. Can be repeated."""
    names = (runtime / _LIST).read_text().split() if (runtime / _LIST).exists() else []
    for name in names:
        (_SHARED_MEMORY / Path(name).name).unlink(missing_ok=True)
    shutil.rmtree(runtime, ignore_errors=True)
