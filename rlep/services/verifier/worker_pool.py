"""Several killable workers behind one queue of jobs."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from rlep.core.errors import ConfigError, VerifierError
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.worker_process import WorkerProcess
from rlep.services.worker.jail import Limits

_log = logging.getLogger(__name__)
_CHUNK = 16
"""Most jobs that go to a worker at once."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Jobs for one worker, and where their replies are awaited."""

    jobs: Sequence[GradingJob]
    replies: Future[list[Reply]]


class WorkerPool:
    """``workers`` killable processes, each owned by a thread that takes chunks of jobs from one queue."""

    def __init__(self, task: str, limits: Limits, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"verifier workers must be at least 1, not {workers}")
        self._chunks: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        self._workers = [WorkerProcess(task, limits) for _ in range(workers)]
        self._task, self._limits = task, limits
        self._failures: set[str] = set()
        """Kinds of exceptions that were logged."""
        self._closed = False
        self._lock = threading.Lock()
        """No chunk is queued behind the marks that end the threads, where nobody would take it."""
        self._threads = [
            threading.Thread(target=self._supervise, args=(worker,), name=f"verifier-{index}", daemon=True)
            for index, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def grade(self, jobs: Sequence[GradingJob]) -> list[Reply]:
        """One reply per job, in order; spread over all workers. Without jobs: one of the workers serves.

        Raises VerifierError when a worker cannot serve, or the pool is closed.
        """
        # With the network the processes wait: each takes its part of the jobs at once.
        size = max(1, math.ceil(len(jobs) / len(self._workers))) if self._limits.network else _CHUNK
        chunks = [_Chunk(jobs[at : at + size], Future()) for at in range(0, len(jobs) or 1, size)]
        with self._lock:
            if self._closed:
                raise VerifierError("this verifier is closed")
            for chunk in chunks:
                self._chunks.put(chunk)
        replies = [reply for chunk in chunks for reply in chunk.replies.result()]
        self._log_failures(replies)
        return replies

    def _log_failures(self, replies: Sequence[Reply]) -> None:
        """One warning for each kind of failure, however many answers had it; the verdicts count them all."""
        for reply in replies:
            kind = reply.failure.partition(":")[0]
            with self._lock:
                known = not kind or kind in self._failures
                self._failures.add(kind)
            if not known:
                _log.warning("grading (%s) failed, the answer is %s: %s", self._task, reply.status, reply.failure)

    def _supervise(self, worker: WorkerProcess) -> None:
        with suppress(VerifierError):  # the first chunk tries again, and says so
            worker.start()
        try:
            while (chunk := self._chunks.get()) is not None:
                try:
                    chunk.replies.set_result(worker.grade(chunk.jobs))
                except Exception as error:  # noqa: BLE001 - the thread's outermost frame: a caller waits for this
                    worker.kill()
                    chunk.replies.set_exception(error)
        finally:
            worker.kill()

    def close(self) -> None:
        """Finish the chunks already queued, then end every process and thread. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._chunks.put(None)
        for thread in self._threads:
            thread.join()
