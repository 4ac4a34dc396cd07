"""The process that has episodes, in the runner that its host forks. It answers one call after the other.

Run as ``python -m rlep.services.environment.worker PARENT_PID TASK LIMITS_JSON``; the task is ``LONGEST:module:Class``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from rlep.services.environment.contract import load_contract
from rlep.services.environment.episodes import Episodes
from rlep.services.environment.overtime import CallClock
from rlep.services.environment.reply import CallReply
from rlep.services.worker import frames
from rlep.services.worker.host import OUT_OF_MEMORY, OUT_OF_STEP, RECYCLED, Life, main, write
from rlep.services.worker.jail import Limits, confine, memory_mb


def prepare(task: str, limits: Limits, jobs: int, replies: int) -> Life:
    """Import the class of a task, and tell its tools."""
    longest, _, factory = task.partition(":")
    contract = load_contract(factory)
    write(replies, {"tools": contract.schemas})

    def life() -> int:
        loop = asyncio.new_event_loop() if contract.waits else None  # it has sockets, which the limits may refuse
        confine(limits)
        return serve(Episodes(contract, CallClock(limits), loop, int(longest)), limits, jobs, replies)

    return life


def serve(episodes: Episodes, limits: Limits, jobs: int, replies: int) -> int:
    """Answer calls until it is time to be replaced; the exit code."""
    answers: dict[str, Callable[..., CallReply]] = {
        "begin": episodes.begin,
        "call": episodes.call,
        "step": episodes.step,
        "end": episodes.end,
        "drop": episodes.drop,
        "probe": lambda: CallReply("open"),
    }
    largest = memory_mb().resident + limits.recycle_mb
    while (call := frames.read_blocking(jobs)) is not None:
        number, kind, *given = call
        reply = answers[kind](*given)
        if reply.status == "out_of_memory" and memory_mb().resident > largest:  # what is left is not that episode's
            return OUT_OF_MEMORY
        write(replies, [number, reply])
        if not len(episodes) and memory_mb().resident > largest:
            write(replies, {"recycled": True})
            return RECYCLED
    return OUT_OF_STEP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prepare))
