"""Requests that wait for a generator: taken in order under a lease, given back when the generator is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlep.types import Completion, Request, Sampling


@dataclass(eq=False, slots=True)
class Job:
    """One ``generate`` call: its sampling, what is still missing, and its finished completions (or its failure)."""

    sampling: Sampling
    missing: dict[str, Request]
    in_flight: int | None = None
    """Requests that all workers together should hold at a time; None leaves it to the workers."""
    finished: asyncio.Queue[Completion | Exception] = field(default_factory=asyncio.Queue)


class WorkQueue:
    """First in, first out over all jobs; every request is finished exactly once, however often it was handed out."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Job, Request]] = deque()
        self._leased: dict[str, dict[str, tuple[Job, Request]]] = {}
        self._jobs: dict[str, Job] = {}
        self._changed = asyncio.Event()

    def put(self, requests: Iterable[Request], sampling: Sampling, in_flight: int | None = None) -> Job:
        """Queue a job. Raises ``ValueError`` when a request id is already in the queue."""
        wanted = list(requests)
        missing = {request.id: request for request in wanted}
        clashes = [request.id for request in wanted if request.id in self._jobs]
        if len(missing) != len(wanted) or clashes:
            raise ValueError(f"request ids must be distinct; already queued: {clashes[:3] or 'within the job itself'}")
        job = Job(sampling, missing, in_flight)
        self._jobs.update(dict.fromkeys(missing, job))
        self._pending.extend((job, request) for request in wanted)
        self._changed.set()
        return job

    def take(self, worker: str, limit: int) -> tuple[Job, list[Request]] | None:
        """Lease up to ``limit`` requests of the oldest waiting job to ``worker``; None when nothing waits."""
        taken: list[Request] = []
        job: Job | None = None
        while self._pending and len(taken) < limit and (job is None or self._pending[0][0] is job):
            job, request = self._pending.popleft()
            self._leased.setdefault(worker, {})[request.id] = (job, request)
            taken.append(request)
        return (job, taken) if job is not None else None

    def finish(self, job: Job, completion: Completion) -> bool:
        """Deliver a completion to its job. False for a late duplicate or a request of a cancelled job: it is dropped."""
        holders = [leases for leases in self._leased.values() if leases.get(completion.request_id, (None,))[0] is job]
        for leases in holders:
            del leases[completion.request_id]
        if self._jobs.get(completion.request_id) is not job:
            return False
        if not holders:  # given back, and finished after all by the worker it was taken from
            self._pending = deque(entry for entry in self._pending if entry[1].id != completion.request_id)
        del self._jobs[completion.request_id], job.missing[completion.request_id]
        job.finished.put_nowait(completion)
        return True

    def give_back(self, worker: str) -> int:
        """Put a lost worker's unfinished requests at the head of the queue again; returns how many."""
        leases = self._leased.pop(worker, {})
        back = [(job, request) for job, request in leases.values() if self._jobs.get(request.id) is job]
        self._pending.extendleft(reversed(back))
        if back:
            self._changed.set()
        return len(back)

    def cancel(self, job: Job) -> None:
        """Forget a job; what is still generated for it is dropped."""
        for request_id in job.missing:
            self._jobs.pop(request_id, None)
        self._pending = deque((owner, request) for owner, request in self._pending if owner is not job)

    def fail(self, error: Exception) -> None:
        """End every job with ``error``: nobody is left to work."""
        for job in {id(job): job for job in self._jobs.values()}.values():
            job.finished.put_nowait(error)
            self.cancel(job)

    def share(self, workers: int) -> int | None:
        """Requests of the oldest waiting job that one of ``workers`` should hold; None: as many as it can."""
        bound = self._pending[0][0].in_flight if self._pending else None
        return None if bound is None else -(-bound // max(workers, 1))

    def leased(self, worker: str) -> int:
        """How many requests ``worker`` holds."""
        return len(self._leased.get(worker, {}))

    @property
    def waiting(self) -> int:
        """Requests that no worker holds."""
        return len(self._pending)

    async def changed(self) -> None:
        """Wait until requests wait to be taken."""
        while not self._pending:
            self._changed.clear()
            await self._changed.wait()
