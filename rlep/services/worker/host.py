"""The killable process: a warm host that forks one runner at a time, and the runner, which does the jobs.

The host imports once what is slow to import and does no job, so a runner that was killed is replaced by a fork within
milliseconds. Both ends of the pipes stay the same for the parent:

    parent --jobs--> runner          runner --its answers------------> parent
                                     host   --how the runner ended, or why
                                              it cannot serve at all--> parent
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, Final, NoReturn

from rlep.core.errors import RlepError
from rlep.services.worker import frames
from rlep.services.worker.failure import MAX_REASON, missing_variable
from rlep.services.worker.jail import Limits, Unconfined, die_with_parent

RECYCLED: Final = 0
OUT_OF_MEMORY: Final = 77
OUT_OF_STEP: Final = 78
UNUSABLE: Final = 79

Life = Callable[[], int]
"""The runner's work, until it is time to be replaced; returns the exit code."""
Prepare = Callable[[str, Limits, int, int], Life]
"""(task, limits, pipe of jobs, pipe of replies): imports what the task names."""


def main(arguments: list[str], prepare: Prepare) -> int:
    """Serve ``PARENT_PID TASK LIMITS_JSON`` until the parent closes the pipe."""
    die_with_parent(int(arguments[0]))
    limits = Limits(**json.loads(arguments[2]))
    jobs, replies = _take_pipes()
    try:
        life = prepare(arguments[1], limits, jobs, replies)
    except BaseException as error:  # noqa: BLE001 - the process's outermost frame, whatever the user's module raised
        said = str(error) if isinstance(error, RlepError) else f"{type(error).__name__}: {error}"
        said = said[:MAX_REASON] + missing_variable(error, "verifier.variables or environment.variables")
        write(replies, {"failed": said})
        return UNUSABLE
    return _host(life, replies)


def write(replies: int, message: Any) -> None:
    """Send a message to the parent."""
    os.write(replies, frames.encode(message))


def how_it_ended(code: int) -> str:
    """The status of the job a runner died of, or ``recycled``."""
    if code == RECYCLED:
        return "recycled"
    if code in (-signal.SIGPROF, -signal.SIGXCPU):
        return "timeout"
    return "out_of_memory" if code == OUT_OF_MEMORY else "crashed"


def _take_pipes() -> tuple[int, int]:
    """Move the protocol off descriptors 0 and 1, so that nothing a job prints or reads can touch it."""
    jobs, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return jobs, replies


def _host(life: Life, replies: int) -> int:
    """Keep one runner alive; report how each one ended."""
    while True:
        parent = os.getpid()
        runner = os.fork()
        if runner == 0:
            _run(life, parent, replies)
        _, state = os.waitpid(runner, 0)
        code = os.waitstatus_to_exitcode(state)
        if code in (OUT_OF_STEP, UNUSABLE):
            return code
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        write(replies, {"ended": how_it_ended(code), "how": f"Ended: its process, with {how}"})


def _run(life: Life, parent: int, replies: int) -> NoReturn:
    """The runner's whole life."""
    code = 1
    try:
        die_with_parent(parent)
        code = life()
    except MemoryError:
        code = OUT_OF_MEMORY
    except frames.FrameError:
        code = OUT_OF_STEP
    except Unconfined as error:
        write(replies, {"failed": str(error)})
        code = UNUSABLE
    finally:
        os._exit(code)
