"""One worker process as seen by its parent: started, given batches, killed when it must be, started again."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from rlep.core.errors import JudgeAway, VerifierError
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.reply import Reply, read_reply
from rlep.services.worker import frames
from rlep.services.worker.jail import Limits
from rlep.services.worker.process import START_SECONDS, end_process, start_process

_MAX_ENDS = 3
"""Runners that may end, one after the other, before a batch is accepted."""
FIRST_TRIES = 2
"""Processes in a row that may use up the time of a first job: a function that never ends does not get it each time."""


class WorkerLost(RuntimeError):
    """The process is gone or out of step; what it had not answered is to be given to a new one."""

    at_work = False
    """It had accepted its jobs."""


class WorkerProcess:
    """A killable process. Not thread-safe: one supervising thread owns it, from start to close.

    The kernel kills the process when that thread ends, so the thread must outlive the worker.
    """

    def __init__(self, task: str, limits: Limits) -> None:
        self._task = task
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._batches = 0
        self._served = False
        """The present process accepted a batch."""
        self._fresh = True
        """The runner has answered no job yet."""
        self._spent = 0
        """Runners in a row that used up the time of a first job without an answer."""
        self._alone = False
        """A process was lost with several jobs in work: one at a time, until it is known which of them it was."""

    def start(self) -> None:
        """Start the process without waiting for it to be ready. Raises VerifierError where the machine refuses."""
        try:
            self._process = start_process("rlep.services.verifier.worker", self._task, self._limits)
        except OSError as error:
            raise VerifierError(f"no verifier process ({self._task}) can be started: {error}") from error
        self._buffer.clear()
        self._served = False

    def grade(self, jobs: Sequence[GradingJob]) -> list[Reply]:
        """One reply per job, in order. A job that killed its runner is reported once; the others are graded.

        Without jobs: the process serves, or cannot.

        Raises VerifierError when the process cannot serve or is lost repeatedly without a job to blame.
        """
        replies: list[Reply] = []
        position, losses = 0, 0
        served = False
        while not served or len(replies) < len(jobs):
            try:
                self._attempt(jobs[len(replies) :], replies)
                served = True
            except WorkerLost as lost:
                self.kill()
                self._alone = True
                losses = losses + 1 if len(replies) == position else 1
                position = len(replies)
                if lost.at_work and losses > 1:  # lost twice with this job: the job is to blame
                    replies.append(Reply("crashed", None, 0.0, f"Lost: its process, twice: {lost}"))
                elif losses > 2:
                    raise VerifierError(
                        f"the verifier process ({self._task}) was lost {losses} times: {lost}"
                    ) from lost
        return replies

    def _attempt(self, jobs: Sequence[GradingJob], replies: list[Reply]) -> None:
        """Send ``jobs`` and append replies until all are answered or one of them ended the runner."""
        if self._process is None:
            self.start()
        self._batches += 1
        at_once = 1 if self._alone else self._limits.at_once
        first_seconds = self._limits.first_seconds if self._spent < FIRST_TRIES else 0.0
        batch = {"batch": self._batches, "jobs": list(map(astuple, jobs)), "at_once": at_once}
        self._send(batch | {"first_seconds": first_seconds})
        try:
            self._await_acceptance()
        except frames.FrameError as error:
            raise WorkerLost(str(error)) from error
        wanted = len(replies) + len(jobs)
        started = time.perf_counter()
        while len(replies) < wanted:
            try:
                patience = max(self._limits.wall_seconds, first_seconds * self._fresh)
                message = self._receive(started + patience)
                ended = None if message is None else self._taken(message, replies)
            except (WorkerLost, frames.FrameError) as error:
                lost = WorkerLost(str(error))
                lost.at_work = True
                raise lost from error
            now = time.perf_counter()
            if message is None:
                self.kill()
                ended = Reply("timeout", None, 0.0)
            if ended is not None:
                self._spent += self._fresh and ended.status == "timeout"
                self._blame(replace(ended, seconds=now - started), replies, wanted, at_once)
                return
            if self._fresh:
                self._fresh, self._spent = False, 0
            started = now

    def _await_acceptance(self) -> None:
        """Wait until the batch is accepted. Raises VerifierError, WorkerLost, and FrameError for anything else."""
        deadline, ends = time.perf_counter() + START_SECONDS, 0
        while True:
            match message := self._receive(deadline):
                case {"batch": self._batches, "first": bool(first), **rest} if not rest:
                    self._served, self._fresh = True, first
                    return
                case None:
                    raise WorkerLost(f"no sign of life for {START_SECONDS:g} s")
                case {"failed": str(why)} if not self._served:
                    raise VerifierError(f"the verifier process ({self._task}) cannot serve: {why}")
                case {"ended": str(), "how": str()} if (
                    ends < _MAX_ENDS
                ):  # of a runner that was recycled, or between two batches
                    ends += 1
                case _:
                    raise frames.FrameError(f"no sign that it accepts its jobs: {message!r:.80}")

    def _taken(self, message: Any, replies: list[Reply]) -> Reply | None:
        """Append a result; of a runner that ended, return the result of the job that ended it.

        Raises JudgeAway, and FrameError for anything else.
        """
        match message:
            case list():
                replies.append(read_reply(message))
                return None
            case {"ended": "timeout" | "out_of_memory" as status}:
                return Reply(status, None, 0.0)
            case {
                "ended": "crashed" | "recycled",
                "how": str(how),
            }:  # a job may leave with the code of a recycled runner
                return Reply("crashed", None, 0.0, how)
            case {"away": str(why)} if self._limits.network:
                waited = f"{self._limits.deadline_s:g} s (verifier.deadline_s)"
                raise JudgeAway(f"the server behind {self._task} could not be reached for {waited}: {why}")
            case _:
                raise frames.FrameError(f"neither a result nor the end of a runner: {message!r:.80}")

    def _blame(self, reply: Reply, replies: list[Reply], wanted: int, at_once: int) -> None:
        """Append the verdict of the job that ended the process, if it is known which one that was."""
        self._alone = at_once > 1 and wanted - len(replies) > 1
        if not self._alone:
            replies.append(reply)

    def _send(self, message: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        remaining = memoryview(frames.encode(message))
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while remaining:
            if not poll.poll(START_SECONDS * 1000):
                raise WorkerLost("it does not read its jobs")
            try:
                remaining = remaining[os.write(descriptor, remaining) :]
            except BrokenPipeError as error:
                raise WorkerLost("it closed its pipe") from error

    def _receive(self, deadline: float) -> Any | None:
        """The next message, or None at the deadline (``time.perf_counter``)."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            try:
                found, used = frames.take(self._buffer)
            except frames.FrameError as error:
                raise WorkerLost(str(error)) from error
            if used:
                del self._buffer[:used]
                return found
            if not poll.poll(max(0.0, deadline - time.perf_counter()) * 1000):
                return None
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise WorkerLost("it exited")
            self._buffer += chunk

    def kill(self) -> None:
        """End the process and its runner now; the next ``grade`` starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        end_process(process)
