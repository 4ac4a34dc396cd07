"""The queue of requests against a model that is a few lists: first in, first out, and finished exactly once."""

from __future__ import annotations

import asyncio

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


class QueueModel(RuleBasedStateMachine):
    """``waiting`` is the queue in order, ``held`` what each worker took, ``open`` the unfinished requests of each job."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue()
        self.jobs: list[Job] = []
        self.waiting: list[tuple[int, str]] = []
        self.held: dict[str, list[tuple[int, str]]] = {worker: [] for worker in WORKERS}
        self.open: dict[int, list[str]] = {}
        self.written: list[tuple[int, str]] = []
        """Every request that some worker was ever given: it may complete late, or twice."""
        self.finished: list[str] = []

    @rule(count=st.integers(1, 5))
    def put(self, count: int) -> None:
        number = len(self.jobs)
        names = [f"{number}/{i}" for i in range(count)]
        self.jobs.append(self.queue.put([request_of(name) for name in names], Sampling()))
        self.waiting += [(number, name) for name in names]
        self.open[number] = names

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 4))
    def take(self, worker: str, limit: int) -> None:
        taken = self.queue.take(worker, limit)
        if not self.waiting:
            assert taken is None
            return
        first = self.waiting[0][0]
        expected: list[tuple[int, str]] = []
        while self.waiting and len(expected) < limit and self.waiting[0][0] == first:
            expected.append(self.waiting.pop(0))
        assert taken is not None
        assert taken[0] is self.jobs[first]
        assert [request.id for request in taken[1]] == [name for _, name in expected]
        self.held[worker] += expected
        self.written += expected

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Any request that was ever handed out completes, also a second time or after its job was cancelled."""
        owner, name = data.draw(st.sampled_from(self.written))
        wanted = name in self.open.get(owner, ())
        assert self.queue.finish(self.jobs[owner], completion_of(name)) is wanted
        for worker in WORKERS:
            self.held[worker] = [entry for entry in self.held[worker] if entry != (owner, name)]
        if wanted:
            self.open[owner].remove(name)
            self.finished.append(name)
            received = delivered(self.jobs[owner])
            assert [item.request_id for item in received if isinstance(item, Completion)] == [name]
            self.waiting = [entry for entry in self.waiting if entry != (owner, name)]

    @rule(worker=st.sampled_from(WORKERS))
    def lose(self, worker: str) -> None:
        back = [entry for entry in self.held[worker] if entry[1] in self.open.get(entry[0], ())]
        assert self.queue.give_back(worker) == len(back)
        self.waiting = back + self.waiting
        self.held[worker] = []

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.queue.cancel(self.jobs[number])
        del self.open[number]
        self.waiting = [entry for entry in self.waiting if entry[0] != number]

    @rule()
    def fail(self) -> None:
        error = ActorLost("no generator is left")
        self.queue.fail(error)
        for number, names in self.open.items():
            assert delivered(self.jobs[number]) == ([error] if names else [])
        self.waiting = [entry for entry in self.waiting if not self.open.get(entry[0])]
        self.open = {}

    @invariant()
    def agrees(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        for worker in WORKERS:
            assert self.queue.leased(worker) == len(self.held[worker])
        assert len(self.finished) == len(set(self.finished))


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(deadline=None, derandomize=True, max_examples=30, stateful_step_count=40)


def taken_ids(queue: WorkQueue, worker: str, limit: int) -> list[str]:
    """Ids of the requests taken."""
    taken = queue.take(worker, limit)
    return [] if taken is None else [request.id for request in taken[1]]


def test_a_lost_worker_s_requests_come_first_again_in_order() -> None:
    queue = WorkQueue()
    job = queue.put(map(request_of, "uvwxyz"), Sampling())
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert queue.finish(job, completion_of("v"))
    assert queue.give_back("a") == 2
    assert taken_ids(queue, "b", 9) == ["u", "w", "x", "y", "z"]
    assert not queue.finish(job, completion_of("v"))
    assert [item.request_id for item in delivered(job) if isinstance(item, Completion)] == ["v"]


def test_one_take_holds_requests_of_one_job() -> None:
    queue = WorkQueue()
    queue.put(map(request_of, "uv"), Sampling(temperature=1.0))
    queue.put(map(request_of, "xy"), Sampling(temperature=0.5))
    assert [taken_ids(queue, "a", 9) for _ in range(3)] == [["u", "v"], ["x", "y"], []]


def test_each_worker_holds_its_share_of_what_the_oldest_job_allows_in_flight() -> None:
    queue = WorkQueue()
    assert queue.share(2) is None
    queue.put(map(request_of, "uvw"), Sampling(), 5)
    queue.put(map(request_of, "xyz"), Sampling())
    assert [queue.share(workers) for workers in (1, 2, 3, 8, 0)] == [5, 3, 2, 1, 5]
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert queue.share(2) is None


@pytest.mark.parametrize(("first", "second"), [("uu", ""), ("uv", "vw")])
def test_repeated_ids_are_refused_and_nothing_is_queued(first: str, second: str) -> None:
    queue = WorkQueue()
    if second:
        queue.put(map(request_of, first), Sampling())
    with pytest.raises(ValueError, match="request ids must be distinct"):
        queue.put(map(request_of, second or first), Sampling())
    assert queue.waiting == (len(first) if second else 0)


async def test_workers_wake_when_there_is_work() -> None:
    queue = WorkQueue()
    woken: list[str] = []

    async def work(worker: str) -> None:
        await queue.changed()
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
    queue = WorkQueue()
    first = queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    queue.cancel(first)
    second = queue.put([request_of("u")], Sampling())
    assert not queue.finish(first, completion_of("u"))
    assert taken_ids(queue, "b", 1) == ["u"]
    assert queue.finish(second, completion_of("u"))
    assert len(delivered(second)) == 1
    assert delivered(first) == []
