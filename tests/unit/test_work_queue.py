"""The queue of requests against a model that is a few lists: first in, first out, leased, and finished exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlep.actors.work_queue import Job, WorkQueue
from rlep.errors import ActorLost
from rlep.types import Completion, Request, Sampling

WORKERS = ("a", "b", "c")
NO_TOKENS = np.zeros(0, dtype=np.int32)


def request_of(name: str) -> Request:
    """A request."""
    return Request(name, "prompt", NO_TOKENS, 0, 0)


def completion_of(name: str, text: str = "") -> Completion:
    """Its completion."""
    return Completion(name, "prompt", 0, NO_TOKENS, np.zeros(0, dtype=np.float32), "stop", 0, text)


def delivered(job: Job) -> list[Completion | Exception]:
    """What a job was given so far; taken out."""
    items = []
    while not job.finished.empty():
        items.append(job.finished.get_nowait())
    return items


LEASE = 10


@dataclass(eq=False)
class Wanted:
    """One request as the model sees it; ``holders``: worker → when its lease ends, in the order they took it."""

    owner: int
    name: str
    holders: dict[str, int] = field(default_factory=dict)
    open: bool = True


class QueueModel(RuleBasedStateMachine):
    """``waiting``: what nobody holds, in order; ``late``: held by nobody in time, in the order the last lease ended."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.queue = WorkQueue(LEASE, lambda: float(self.now))
        self.jobs: list[Job] = []
        self.requests: list[Wanted] = []
        self.waiting: list[Wanted] = []
        self.late: list[Wanted] = []
        self.holding: dict[str, list[Wanted]] = {worker: [] for worker in WORKERS}
        self.written: list[tuple[str, Wanted]] = []
        """Everything that some worker was ever given: it may complete late, or twice."""
        self.retried = self.dropped = 0

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

    @rule(seconds=st.integers(1, LEASE))
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

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 4))
    def take(self, worker: str, limit: int) -> None:
        offered = [one for one in self.late if worker not in one.holders] + self.waiting
        expected: list[Wanted] = []
        for one in offered[:limit]:
            if one.owner != offered[0].owner:
                break
            expected.append(one)
        taken = self.queue.take(worker, limit)
        if not expected:
            assert taken is None
            return
        assert taken is not None
        assert taken[0] is self.jobs[expected[0].owner]
        assert [request.id for request in taken[1]] == [one.name for one in expected]
        for one in expected:
            self.retried += one in self.late
            self.waiting = [other for other in self.waiting if other is not one]
            self.late = [other for other in self.late if other is not one]
            one.holders[worker] = self.now + LEASE
            self.holding[worker].append(one)
            self.written.append((worker, one))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Anything that was ever handed out completes, also a second time or after its job was cancelled."""
        worker, one = data.draw(st.sampled_from(self.written))
        assert self.queue.finish(worker, self.jobs[one.owner], completion_of(one.name)) is one.open
        received = delivered(self.jobs[one.owner])
        assert [item.request_id for item in received if isinstance(item, Completion)] == [one.name] * one.open
        self.dropped += not one.open
        self.release(worker, one)
        self.close(one)

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
            assert self.queue.leased(worker) == len(self.holding[worker])
        for number, job in enumerate(self.jobs):
            if names := [one.name for one in self.open_of(number)]:
                assert list(job.missing) == names
        assert (self.queue.retried, self.queue.dropped) == (self.retried, self.dropped)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(deadline=None, derandomize=True, max_examples=60, stateful_step_count=50)


def taken_ids(queue: WorkQueue, worker: str, limit: int) -> list[str]:
    """Ids of the requests taken."""
    taken = queue.take(worker, limit)
    return [] if taken is None else [request.id for request in taken[1]]


def test_a_lost_worker_s_requests_come_first_again_in_order() -> None:
    queue = WorkQueue(600)
    job = queue.put(map(request_of, "uvwxyz"), Sampling())
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert queue.finish("a", job, completion_of("v"))
    assert queue.give_back("a") == 2
    assert taken_ids(queue, "b", 9) == ["u", "w", "x", "y", "z"]
    assert not queue.finish("a", job, completion_of("v"))
    assert [item.request_id for item in delivered(job) if isinstance(item, Completion)] == ["v"]


def test_one_take_holds_requests_of_one_job() -> None:
    queue = WorkQueue(600)
    queue.put(map(request_of, "uv"), Sampling(temperature=1.0))
    queue.put(map(request_of, "xy"), Sampling(temperature=0.5))
    assert [taken_ids(queue, "a", 9) for _ in range(3)] == [["u", "v"], ["x", "y"], []]


def test_each_worker_holds_its_share_of_what_the_oldest_job_allows_in_flight() -> None:
    queue = WorkQueue(600)
    assert queue.share(2) == 0
    queue.put(map(request_of, "uvw"), Sampling(), 5)
    queue.put(map(request_of, "xyz"), Sampling())
    assert [queue.share(workers) for workers in (1, 2, 3, 8, 0)] == [5, 3, 2, 1, 5]
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert [queue.share(workers) for workers in (1, 2, 4)] == [6, 3, 2], "no bound for x, y, z: an even part of all six"


@pytest.mark.parametrize(("first", "second"), [("uu", ""), ("uv", "vw")])
def test_repeated_ids_are_refused_and_nothing_is_queued(first: str, second: str) -> None:
    queue = WorkQueue(600)
    if second:
        queue.put(map(request_of, first), Sampling())
    with pytest.raises(ValueError, match="request ids must be distinct"):
        queue.put(map(request_of, second or first), Sampling())
    assert queue.waiting == (len(first) if second else 0)


async def test_workers_wake_when_there_is_work() -> None:
    queue = WorkQueue(600)
    woken: list[str] = []

    async def work(worker: str) -> None:
        await queue.changed(worker)
        woken.extend(taken_ids(queue, worker, 1))

    workers = [asyncio.create_task(work(name)) for name in "ab"]
    await asyncio.sleep(0)
    assert woken == []
    queue.put(map(request_of, "uv"), Sampling())
    await asyncio.gather(*workers)
    assert woken == ["u", "v"]
    third = asyncio.create_task(work("c"))
    await asyncio.sleep(0)
    assert not third.done()
    queue.give_back("a")
    await third
    assert woken == ["u", "v", "u"]


def test_a_late_completion_of_a_cancelled_job_does_not_answer_the_same_request_asked_again() -> None:
    queue = WorkQueue(600)
    first = queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    queue.cancel(first)
    second = queue.put([request_of("u")], Sampling())
    assert not queue.finish("a", first, completion_of("u"))
    assert taken_ids(queue, "b", 1) == ["u"]
    assert queue.finish("b", second, completion_of("u"))
    assert len(delivered(second)) == 1
    assert delivered(first) == []


def test_a_slow_worker_s_request_goes_to_another_and_the_first_answer_counts() -> None:
    now = [0.0]
    queue = WorkQueue(10, lambda: now[0])
    job = queue.put(map(request_of, "uvw"), Sampling())
    assert taken_ids(queue, "a", 2) == ["u", "v"]
    now[0] = 9.9
    assert taken_ids(queue, "b", 1) == ["w"]
    now[0] = 10.0
    assert taken_ids(queue, "a", 9) == []  # it works on both already
    assert taken_ids(queue, "b", 9) == ["u", "v"]
    assert queue.finish("b", job, completion_of("u", "first"))
    assert not queue.finish("a", job, completion_of("u", "second"))
    assert queue.finish("a", job, completion_of("v", "first"))
    assert [item.text for item in delivered(job) if isinstance(item, Completion)] == ["first", "first"]
    assert (queue.leased("a"), queue.leased("b")) == (0, 2)  # b still works on v and w
    assert queue.cancel(job) == {"b": ["w", "v"]}
    assert (queue.retried, queue.dropped) == (2, 1)


async def test_an_idle_worker_wakes_when_another_s_lease_ends() -> None:
    queue = WorkQueue(0.05)
    queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    await asyncio.wait_for(queue.changed("b"), 60)
    assert taken_ids(queue, "b", 1) == ["u"]
    idle = asyncio.create_task(queue.changed("a"))
    assert not (await asyncio.wait({idle}, timeout=0.2))[0]  # both work on it: nothing is left for either
    idle.cancel()


def test_a_lease_counts_from_the_last_time_a_worker_took_the_request() -> None:
    now = [0.0]
    queue = WorkQueue(10, lambda: now[0])
    queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    now[0] = 4.0
    assert queue.give_back("a") == 1
    assert taken_ids(queue, "a", 1) == ["u"]
    now[0] = 13.9
    assert taken_ids(queue, "b", 1) == []
    now[0] = 14.0
    assert taken_ids(queue, "b", 1) == ["u"]


def test_a_request_under_a_lease_stays_there_when_another_holder_leaves() -> None:
    now = [0.0]
    queue = WorkQueue(10, lambda: now[0])
    queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    now[0] = 10.0
    assert taken_ids(queue, "b", 1) == ["u"]
    assert queue.give_back("a") == 0
    assert taken_ids(queue, "c", 1) == []
    now[0] = 20.0
    assert taken_ids(queue, "c", 1) == ["u"]


def test_a_late_request_that_its_first_worker_answers_is_not_handed_out_again() -> None:
    now = [0.0]
    queue = WorkQueue(10, lambda: now[0])
    job = queue.put(map(request_of, "uv"), Sampling())
    assert taken_ids(queue, "a", 2) == ["u", "v"]
    now[0] = 10.0
    assert taken_ids(queue, "b", 1) == ["u"]
    assert queue.finish("a", job, completion_of("v"))
    assert taken_ids(queue, "b", 9) == []
