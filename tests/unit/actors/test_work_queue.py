"""The queue of requests: what is given to whom and when, what comes back, and which answer counts."""

from __future__ import annotations

import asyncio

import pytest

from rlep.actors.work_queue import WorkQueue
from rlep.core.types import Completion, Reissued, Sampling
from tests.unit.actors.queue_values import completion_of, delivered, request_of


def taken_ids(queue: WorkQueue, worker: str, limit: int) -> list[str]:
    """Ids of the requests taken."""
    return [entry.request.id for entry in queue.take(worker, limit)]


def test_a_lost_worker_s_requests_come_first_again_in_order() -> None:
    queue = WorkQueue(600)
    job = queue.put(map(request_of, "uvwxyz"), Sampling())
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert queue.finish("a", job, completion_of("v"))
    assert queue.give_back("a") == 2
    assert taken_ids(queue, "b", 9) == ["u", "w", "x", "y", "z"]
    assert not queue.finish("a", job, completion_of("v"))
    assert [item.request_id for item in delivered(job) if isinstance(item, Completion)] == ["v"]


def test_of_a_call_that_broke_only_its_own_unfinished_requests_come_back() -> None:
    queue = WorkQueue(600)
    job = queue.put(map(request_of, "uvwxyz"), Sampling())
    assert [taken_ids(queue, "a", 3) for _ in range(2)] == [["u", "v", "w"], ["x", "y", "z"]]
    assert queue.finish("a", job, completion_of("v"))
    assert queue.give_back("a", ["u", "v", "w"]) == 2
    assert queue.count_leased("a") == 3
    assert taken_ids(queue, "a", 9) == ["u", "w"]


def test_one_take_holds_requests_of_one_sampling() -> None:
    queue = WorkQueue(600)
    for names, temperature in (("u", 1.0), ("v", 1.0), ("xy", 0.5)):
        queue.put(map(request_of, names), Sampling(temperature=temperature))
    assert [taken_ids(queue, "a", 9) for _ in range(3)] == [["u", "v"], ["x", "y"], []]


def test_each_worker_holds_an_even_share() -> None:
    queue = WorkQueue(600)
    assert queue.share(2) == 0
    job = queue.put(map(request_of, "uvwxyz"), Sampling())
    assert [queue.share(workers) for workers in (1, 2, 4, 8, 0)] == [6, 3, 2, 1, 6]
    assert taken_ids(queue, "a", 3) == ["u", "v", "w"]
    assert queue.share(2) == 3, "what is held counts until it is finished"
    assert queue.finish("a", job, completion_of("u"))
    assert [queue.share(workers) for workers in (2, 3)] == [3, 2]


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
        await queue.wait_for_work(worker)
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
    assert (queue.count_leased("a"), queue.count_leased("b")) == (0, 2)  # b still works on v and w
    assert queue.cancel(job) == {"b": ["w", "v"]}
    assert queue.reissued == Reissued(retried=2, dropped=1)


async def test_an_idle_worker_wakes_when_another_s_lease_ends() -> None:
    queue = WorkQueue(0.05)
    queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    await asyncio.wait_for(queue.wait_for_work("b"), 60)
    assert taken_ids(queue, "b", 1) == ["u"]
    idle = asyncio.create_task(queue.wait_for_work("a"))
    # Nothing happens in the time of four leases: both work on it, nothing is left for either.
    assert not (await asyncio.wait({idle}, timeout=0.2))[0]
    idle.cancel()


async def test_a_wait_for_work_that_is_cancelled_as_work_comes_ends() -> None:
    queue = WorkQueue(60)
    queue.put([request_of("u")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]  # its lease gives the wait a deadline
    waiting = asyncio.create_task(queue.wait_for_work("a"))
    await asyncio.sleep(0.01)
    queue.put([request_of("v")], Sampling())
    waiting.cancel()  # in the same round of the event loop
    with pytest.raises(asyncio.CancelledError):
        await waiting


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


def test_the_first_of_two_completions_counts_and_the_other_worker_is_told() -> None:
    now = [0.0]
    queue = WorkQueue(10, lambda: now[0])
    job = queue.put(map(request_of, "xyz"), Sampling())
    assert taken_ids(queue, "a", 3) == ["x", "y", "z"]
    now[0] = 10.0
    assert taken_ids(queue, "b", 2) == ["x", "y"]
    assert taken_ids(queue, "c", 9) == ["z"]
    assert queue.finish("b", job, completion_of("x", "second"))
    assert queue.finish("a", job, completion_of("y", "first"))
    assert queue.take_superseded() == {"a": ["x"], "b": ["y"]}
    assert queue.take_superseded() == {}
    assert (queue.count_leased("a"), queue.count_leased("b")) == (2, 1)
    queue.release("a", ["x", "z"])  # z is not finished: a goes on with it
    assert queue.count_leased("a") == 1
    assert not queue.finish("b", job, completion_of("y", "late"))
    assert [item.text for item in delivered(job) if isinstance(item, Completion)] == ["second", "first"]
    assert queue.reissued == Reissued(retried=3, dropped=1)
    assert list(job.missing) == ["z"]
