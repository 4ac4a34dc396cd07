"""The private directory of one sampler's sockets and rendezvous files, and what its workers share in memory.

Tensor-parallel workers talk through files in ``/dev/shm``. When they are killed, with whatever would have removed the
files (Ray kills all processes of an actor at once), those stay. So the directory lists them, and names its owner: the
next sampler that gets a directory beside it removes both.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import psutil

from rlep.core.paths import SHARED_MEMORY, directory_below, private_directory
from rlep.engines.sampler.vllm_private import SHARED_MEMORY_NAMES, SOCKET_NAME_BYTES

_LIST = "shared-memory"


def make_runtime(parent: Path | None) -> Path:
    """A new directory of mode 700 with room for sockets; those beside it with a dead owner are removed.

    ``parent`` is this user's own, so a short name does. None is the system's directory for temporary files.
    """
    if parent is None:
        return private_directory("sampler", deepest=SOCKET_NAME_BYTES, remove=remove_runtime)
    return directory_below(parent, "sampler-", remove_runtime)


def list_shared_memory(runtime: Path) -> None:
    """Note what this process's descendants share in memory now; called when all of them are up."""
    mapped: set[str] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
            mapped |= {line.split(maxsplit=5)[-1].strip() for line in maps.splitlines()}
    names = [path.name for kind in SHARED_MEMORY_NAMES for path in SHARED_MEMORY.glob(kind) if str(path) in mapped]
    (runtime / _LIST).write_text("\n".join(names))


def remove_runtime(runtime: Path) -> None:
    """Remove the directory, and from memory what it lists. Can be repeated."""
    names = (runtime / _LIST).read_text().split() if (runtime / _LIST).exists() else []
    for name in names:
        (SHARED_MEMORY / Path(name).name).unlink(missing_ok=True)
    shutil.rmtree(runtime, ignore_errors=True)
