"""vLLM's processes end with the process that owns them, however that one ended."""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

from rlep.engines.sampler.runtime import remove_runtime

RUNTIME_DIRECTORY_KEY = "RLEP_SAMPLER_RUNTIME_DIRECTORY"
"""Environment variable: the private directory of one sampler's sockets and rendezvous files."""
_POLL_S = 0.5


class Lifeline:
    """A value that vLLM's configuration carries into each process it starts; there it watches the parent process.

    Left alone, an engine whose owner was killed waits for requests for ever, with all its memory. Unpickling is the
    first of rlep's code to run in such a process, before vLLM connects to its owner.
    """

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return _arrive, (os.getpid(),)

    def compute_hash(self) -> str:
        """Part of vLLM's key for compiled graphs, which do not depend on this."""
        return ""


def _arrive(parent: int) -> Lifeline:
    if parent != os.getpid():  # not a mere copy
        _die_with(parent)
    return Lifeline()


@functools.cache
def _die_with(parent: int) -> None:
    runtime = os.environ.get(RUNTIME_DIRECTORY_KEY)

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        if runtime:
            remove_runtime(Path(runtime))
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
