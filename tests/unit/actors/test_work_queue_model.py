"""The queue of requests against a model that is a few lists: first in, first out, leased, and finished exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlep.actors.work_queue import GenerateCall, WorkQueue
from rlep.core.errors import ActorLost
from rlep.core.types import Completion, Reissued, Sampling
from tests.unit.actors.queue_values import completion_of, delivered, request_of

WORKERS = ("a", "b", "c")
WAIT = 10


@dataclass(eq=False)
class Wanted:
    """One request as the model sees it; ``holders``: worker → when its lease ends, in the order they took it."""

    owner: int
    name: str
    holders: dict[str, int] = field(default_factory=dict)
    open: bool = True


class QueueModel(RuleBasedStateMachine):
    """``waiting``: what nobody holds, in order; ``late``: held by nobody in time, in the order the last lease ended."""

    lease = 10

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.queue = WorkQueue(self.lease, lambda: float(self.now))
        self.jobs: list[GenerateCall] = []
        self.requests: list[Wanted] = []
        self.waiting: list[Wanted] = []
        self.late: list[Wanted] = []
        self.holding: dict[str, list[Wanted]] = {worker: [] for worker in WORKERS}
        self.written: list[tuple[str, Wanted]] = []
        """Everything that some worker was ever given: it may complete late, or twice."""
        self.retried = self.dropped = 0
        self.superseded: dict[str, list[str]] = {}

    def open_of(self, number: int) -> list[Wanted]:
        """The unfinished requests of a job."""
        return [one for one in self.requests if one.owner == number and one.open]

    def close(self, one: Wanted) -> None:
        one.open = False
        self.waiting = [other for other in self.waiting if other is not one]
        self.late = [other for other in self.late if other is not one]

    def release(self, worker: str, one: Wanted) -> None:
        self.holding[worker] = [other for other in self.holding[worker] if other is not one]
        one.holders.pop(worker, None)

    @rule(count=st.integers(1, 5))
    def put(self, count: int) -> None:
        number = len(self.jobs)
        names = [f"{number}/{i}" for i in range(count)]
        self.jobs.append(self.queue.put([request_of(name) for name in names], Sampling()))
        new = [Wanted(number, name) for name in names]
        self.requests += new
        self.waiting += new

    @rule(seconds=st.integers(1, WAIT))
    def wait(self, seconds: int) -> None:
        """Time passes, second by second: what is held by nobody in time is late, the longest held first."""
        for _ in range(seconds):
            self.now += 1
            ended = [one for one in self.requests if one.open and self.now in one.holders.values()]
            self.late += [one for one in self.in_order(ended) if max(one.holders.values()) <= self.now]

    def in_order(self, ended: list[Wanted]) -> list[Wanted]:
        """Requests whose leases end now, in the order in which those were taken."""
        taken = [one for worker, one in self.written if one.holders.get(worker) == self.now and one in ended]
        return list(dict.fromkeys(reversed(taken)))[::-1]

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def take(self, worker: str, limit: int) -> None:
        offered = [one for one in self.late if worker not in one.holders] + self.waiting
        expected = offered[:limit]
        taken = self.queue.take(worker, limit)
        assert [entry.job for entry in taken] == [self.jobs[one.owner] for one in expected]
        assert [entry.request.id for entry in taken] == [one.name for one in expected]
        for one in expected:
            self.retried += one in self.late
            self.waiting = [other for other in self.waiting if other is not one]
            self.late = [other for other in self.late if other is not one]
            one.holders[worker] = self.now + self.lease
            self.holding[worker].append(one)
            self.written.append((worker, one))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Anything that was ever dispatched completes, also a second time or after its job was cancelled."""
        held = [(worker, one) for worker, one in self.written if worker in one.holders]
        late: bool = data.draw(st.booleans())
        worker, one = data.draw(st.sampled_from(self.written if late or not held else held))
        self.answer(worker, one)

    def answer(self, worker: str, one: Wanted) -> None:
        assert self.queue.finish(worker, self.jobs[one.owner], completion_of(one.name)) is one.open
        received = delivered(self.jobs[one.owner])
        assert [item.request_id for item in received if isinstance(item, Completion)] == [one.name] * one.open
        self.dropped += not one.open
        self.release(worker, one)
        if one.open:
            for other in one.holders:
                self.superseded.setdefault(other, []).append(one.name)
        self.close(one)

    @rule(hears=st.sets(st.sampled_from(WORKERS)))
    def supersede(self, hears: set[str]) -> None:
        """Workers are told what another has finished; those that hear it stop."""
        assert self.queue.take_superseded() == self.superseded
        for worker in hears & self.superseded.keys():
            self.queue.release(worker, self.superseded[worker])
            for one in [one for one in self.holding[worker] if one.name in self.superseded[worker] and not one.open]:
                self.release(worker, one)
        self.superseded = {}

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        """A worker is lost, or leaves: what nobody else works on comes first again."""
        left = self.holding[worker]
        for one in left:
            self.release(worker, one)
        back = [one for one in left if one.open and not one.holders]
        assert self.queue.give_back(worker) == len(back)
        self.late = [one for one in self.late if one not in back]
        self.late += [
            one
            for one in left
            if one.open and one.holders and max(one.holders.values()) <= self.now and one not in self.late
        ]
        self.waiting = back + self.waiting
        self.retried += len(back)

    @precondition(lambda self: any(one.open for one in self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted({one.owner for one in self.requests if one.open})))
        held = {worker: [one.name for one in ones if one.owner == number] for worker, ones in self.holding.items()}
        assert self.queue.cancel(self.jobs[number]) == {worker: names for worker, names in held.items() if names}
        self.end(number)

    def end(self, number: int) -> None:
        for one in [one for one in self.requests if one.owner == number]:
            self.close(one)
            for worker in WORKERS:
                self.release(worker, one)

    @rule()
    def fail(self) -> None:
        error = ActorLost("no generator is left")
        self.queue.fail(error)
        for number, job in enumerate(self.jobs):
            unfinished = bool(self.open_of(number))
            assert delivered(job) == ([error] if unfinished else [])
            if unfinished:
                self.end(number)

    @invariant()
    def agrees(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        for worker in WORKERS:
            assert self.queue.count_leased(worker) == len(self.holding[worker])
        for number, job in enumerate(self.jobs):
            if names := [one.name for one in self.open_of(number)]:
                assert list(job.missing) == names
        assert self.queue.reissued == Reissued(self.retried, self.dropped)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=60, stateful_step_count=50)
