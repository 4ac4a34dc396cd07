"""Requests that wait for a generator: taken in order under leases, handed back or re-dispatched, finished exactly once.

method         consumes                  waits for                        unblocked by
──────────────────────────────────────────────────────────────────────────────────────────────────────────────
wait_for_work  nothing                   a request that this worker       put, give_back, take, the end of a lease
                                         may take
take           late requests, turns of   nothing                          —
               this worker's episodes,
               waiting requests, turns
               of busy workers' ones
finish         a lease, and the request  nothing                          —

put ─► waiting ─take─► leased ─finish─► answered          leased ─give_back─► waiting, at the head
                         └─ lease ends ─► late: another worker takes it too, the first answer counts
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rlep.core.types import Completion, Reissued, Request, Sampling

EPISODES = 1 << 16
"""Episodes whose last worker is remembered: those that had a turn last."""
KEPT_S = 1.0
"""Longest time that a turn is kept for the worker of the turn before, which has room for it but takes nothing."""


@dataclass(eq=False, slots=True)
class GenerateCall:
    """One ``generate`` call: its sampling, what is still missing, and its finished completions (or its failure)."""

    sampling: Sampling
    missing: dict[str, Request]
    finished: asyncio.Queue[Completion | Exception] = field(default_factory=asyncio.Queue)
    entries: Sequence[QueuedRequest] = ()
    """All its requests on their way."""


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """One request on its way; ``leases``: worker → when its lease ends, for all that may be working on it."""

    job: GenerateCall
    request: Request
    leases: dict[str, float] = field(default_factory=dict)


class WorkQueue:
    """First in, first out over all jobs; every request is finished exactly once, however often it was dispatched.

    A worker holds what it takes until it finishes or loses it. A request whose leases have all ended is offered to the
    workers that do not hold it. The first completion counts. A later turn of an episode is kept for the worker that has its
    earlier ones in its prefix cache, as long as that is about to take more.
    """

    def __init__(
        self,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        has_room: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``lease_s``: seconds after which a taken request is offered again; ``clock``: where seconds are read.

        ``has_room``: tells whether a worker takes more at once.
        """
        self._lease_s, self._clock, self._has_room = lease_s, clock, has_room
        self._pending: deque[QueuedRequest] = deque()
        self._turns: dict[str, deque[QueuedRequest]] = {}
        """Worker → turns that wait, of episodes whose last turn it served."""
        self._served: dict[str, str] = {}
        """Episode → the worker of its last turn, the most recent last."""
        self._late: dict[str, QueuedRequest] = {}
        """Requests that are held, but under no lease any more."""
        self._ends: deque[tuple[float, str, QueuedRequest]] = deque()
        """(time, worker, request) of every lease, in order of time: all last equally long."""
        self._leased: dict[str, dict[str, QueuedRequest]] = {}
        self._open: dict[str, QueuedRequest] = {}
        self._changed = asyncio.Event()
        self._superseded: dict[str, list[str]] = {}
        """Worker → requests that it holds and another has answered."""
        self.reissued = Reissued()

    def put(self, requests: Iterable[Request], sampling: Sampling) -> GenerateCall:
        """Queue a job. Raises ``ValueError`` when a request id is already in the queue."""
        wanted = list(requests)
        missing = {request.id: request for request in wanted}
        clashes = [request.id for request in wanted if request.id in self._open]
        if len(missing) != len(wanted) or clashes:
            raise ValueError(f"request ids must be distinct; already queued: {clashes[:3] or 'within the job itself'}")
        job = GenerateCall(sampling, missing)
        entries = [QueuedRequest(job, request) for request in wanted]
        job.entries = entries
        self._open.update((entry.request.id, entry) for entry in entries)
        for entry in entries:
            home = self._served.pop(entry.request.episode, None)
            (self._pending if home is None else self._turns.setdefault(home, deque())).append(entry)
        self._changed.set()
        return job

    def take(self, worker: str, limit: int) -> list[QueuedRequest]:
        """Lease up to ``limit`` requests of one sampling to ``worker``; none when there are none for it.

        Those whose lease has ended come first, then turns of its own episodes, first turns, and turns of workers without room.
        """
        held = self._leased.setdefault(worker, {})
        taken: list[QueuedRequest] = []
        while len(taken) < limit and (entry := self._offer(worker)) is not None:
            if taken and entry.job.sampling != taken[0].job.sampling:
                break
            if self._late.pop(entry.request.id, None) is not None:
                self._count(retried=1)
            else:
                next(self._lanes(worker)).popleft()
            entry.leases[worker] = self._clock() + self._lease_s
            self._ends.append((entry.leases[worker], worker, entry))
            held[entry.request.id] = entry
            taken.append(entry)
        if taken:
            self._changed.set()  # it may have no room any more for what is left
        return taken

    def finish(self, worker: str, job: GenerateCall, completion: Completion) -> bool:
        """Deliver a worker's completion to its job. False where no job waits for it any more: it is dropped and counted."""
        identity = completion.request_id
        entry = self._leased.get(worker, {}).get(identity)
        if entry is not None and entry.job is job:
            self._release(worker, entry)
        wanted = self._open.get(identity)
        if wanted is None or wanted.job is not job:
            self._count(dropped=1)
            return False
        if entry is not wanted and not wanted.leases:  # handed back, and finished after all by its former holder
            self._pending = deque(other for other in self._pending if other is not wanted)
        for other in wanted.leases:
            self._superseded.setdefault(other, []).append(identity)
        self._forget(identity)
        if wanted.request.episode:
            self._served[wanted.request.episode] = worker
            if len(self._served) > EPISODES:
                del self._served[next(iter(self._served))]
        del job.missing[identity]
        job.finished.put_nowait(completion)
        return True

    def take_superseded(self) -> dict[str, list[str]]:
        """Return worker → requests that it holds and another has answered since the last call: it may stop."""
        superseded, self._superseded = self._superseded, {}
        return superseded

    def release(self, worker: str, identities: Iterable[str]) -> None:
        """Release requests that a worker stopped working on because another finished them."""
        for identity in identities:
            entry = self._leased.get(worker, {}).get(identity)
            if entry is not None and self._open.get(identity) is not entry:
                self._release(worker, entry)

    def give_back(self, worker: str, identities: Iterable[str] | None = None) -> int:
        """Put a worker's requests that no other works on, all or these, at the head of the queue; returns how many."""
        self._end_leases()
        held = self._leased.get(worker, {})
        back = []
        for entry in [held[name] for name in list(held if identities is None else identities) if name in held]:
            self._release(worker, entry)
            if self._open.get(entry.request.id) is not entry:
                continue
            if entry.leases:  # others work on it, perhaps too long already
                self._expire(entry)
            else:
                self._late.pop(entry.request.id, None)
                back.append(entry)
        self._pending.extendleft(reversed(back))
        self._count(retried=len(back))
        self._changed.set()
        return len(back)

    def cancel(self, job: GenerateCall) -> dict[str, list[str]]:
        """Forget a job; returns who may stop working on what of it, as worker → request ids: those leases are over."""
        if job.missing:  # an episode's turns are a job each: those that have ended leave nothing that waits
            for identity in job.missing:
                self._forget(identity)
            self._pending = deque(entry for entry in self._pending if entry.job is not job)
            for home, lane in self._turns.items():
                self._turns[home] = deque(entry for entry in lane if entry.job is not job)
        holders = {worker for entry in job.entries for worker in entry.leases}
        held: dict[str, list[str]] = {}
        for worker, leases in self._leased.items():
            for entry in [entry for entry in leases.values() if entry.job is job] if worker in holders else []:
                self._release(worker, entry)
                held.setdefault(worker, []).append(entry.request.id)
        return held

    def fail(self, error: Exception) -> None:
        """End every job with ``error``: no worker is left."""
        for job in {id(entry.job): entry.job for entry in self._open.values()}.values():
            job.finished.put_nowait(error)
            self.cancel(job)

    def share(self, workers: int) -> int:
        """Return the number of requests that one of ``workers`` should hold: an even part of all."""
        return -(-len(self._open) // max(workers, 1))

    def count_leased(self, worker: str) -> int:
        """Count the requests that ``worker`` works on, those that another has answered meanwhile included."""
        return len(self._leased.get(worker, {}))

    def count_turns(self, worker: str) -> int:
        """Count the turns that wait, of episodes whose last turn ``worker`` served."""
        return len(self._turns.get(worker, ()))

    @property
    def waiting(self) -> int:
        """Requests that no worker holds."""
        return len(self._pending) + sum(map(len, self._turns.values()))

    async def wait_for_work(self, worker: str) -> None:
        """Wait until there is a request that ``worker`` may take."""
        while self._offer(worker) is None:
            self._changed.clear()
            until = self._ends[0][0] - self._clock() if self._ends else None
            if self.waiting:
                until = KEPT_S if until is None else min(until, KEPT_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(until):
                    await self._changed.wait()

    def _offer(self, worker: str) -> QueuedRequest | None:
        """Return the next request for ``worker``."""
        self._end_leases()
        late = next((entry for entry in self._late.values() if worker not in entry.leases), None)
        lane = None if late is not None else next(self._lanes(worker), None)
        return late if lane is None else lane[0]

    def _lanes(self, worker: str) -> Iterator[deque[QueuedRequest]]:
        """Yield what waits for ``worker``, in the order in which it may take it."""
        own = self._turns.get(worker)
        if own:
            yield own
        if self._pending:
            yield self._pending
        for home, lane in self._turns.items():
            if lane and home != worker and not self._has_room(home):
                yield lane

    def _end_leases(self) -> None:
        while self._ends:
            end, holder, entry = self._ends[0]
            held = self._open.get(entry.request.id) is entry and holder in entry.leases
            if held and end > self._clock():
                break
            self._ends.popleft()
            if held:
                self._expire(entry)

    def _expire(self, entry: QueuedRequest) -> None:
        if max(entry.leases.values()) <= self._clock():
            self._late[entry.request.id] = entry

    def _release(self, worker: str, entry: QueuedRequest) -> None:
        entry.leases.pop(worker, None)
        self._leased.get(worker, {}).pop(entry.request.id, None)

    def _count(self, *, retried: int = 0, dropped: int = 0) -> None:
        self.reissued += Reissued(retried, dropped)

    def _forget(self, identity: str) -> None:
        self._open.pop(identity, None)
        self._late.pop(identity, None)
