"""Turns of episodes in the queue: the worker of the turn before has them in its prefix cache, and nobody idles for it."""

from __future__ import annotations

import asyncio

import pytest

from rlep.actors import work_queue
from rlep.actors.work_queue import GenerateCall, WorkQueue
from rlep.core.types import Completion, Request, Sampling
from tests.unit.actors.generator_scene import Scene, kills
from tests.unit.actors.queue_values import completion_of, delivered, request_of
from tests.unit.actors.test_work_queue import taken_ids

__all__ = ["kills"]


def turns(*names: str) -> list[Request]:
    """A turn of each of these episodes: ``u`` is the first of episode u, ``u2`` the second."""
    return [request_of(name, name[0]) for name in names]


def begun(queue: WorkQueue, **workers: str) -> None:
    """Have each worker serve the first turns of episodes."""
    for worker, names in workers.items():
        job = queue.put(turns(*names), Sampling())
        assert taken_ids(queue, worker, 9) == list(names)
        for name in names:
            assert queue.finish(worker, job, completion_of(name))


def test_a_turn_goes_to_the_worker_of_the_turn_before() -> None:
    queue = WorkQueue(600, has_room=lambda _: True)
    begun(queue, a="uv", b="xy")
    queue.put(turns("x2", "u2", "y2", "v2"), Sampling())
    assert queue.waiting == 4
    assert taken_ids(queue, "a", 9) == ["u2", "v2"]
    assert taken_ids(queue, "c", 9) == []
    assert taken_ids(queue, "b", 9) == ["x2", "y2"]
    assert queue.waiting == 0


def test_a_turn_is_not_kept_for_a_worker_without_room() -> None:
    queue = WorkQueue(600, has_room=lambda worker: worker == "b")
    begun(queue, a="uv", b="x")
    queue.put(turns("u2", "x2", "v2"), Sampling())
    assert taken_ids(queue, "c", 9) == ["u2", "v2"]
    assert taken_ids(queue, "b", 9) == ["x2"]


def test_later_turns_come_before_new_episodes_and_those_before_others_turns() -> None:
    queue = WorkQueue(600)
    begun(queue, a="u", b="x")
    queue.put(turns("p", "q"), Sampling())
    queue.put(turns("u2", "x2"), Sampling())
    assert taken_ids(queue, "a", 9) == ["u2", "p", "q", "x2"]


def test_the_last_turn_counts_wherever_it_was_served() -> None:
    queue = WorkQueue(600, has_room=lambda worker: worker != "a")
    begun(queue, a="u")
    job = queue.put(turns("u2"), Sampling())
    assert taken_ids(queue, "b", 9) == ["u2"]
    assert queue.finish("b", job, completion_of("u2"))
    queue.put(turns("u3"), Sampling())
    assert taken_ids(queue, "a", 9) == []
    assert taken_ids(queue, "b", 9) == ["u3"]


def test_turns_of_a_cancelled_call_are_forgotten_and_a_lost_workers_come_back() -> None:
    queue = WorkQueue(600, has_room=lambda _: True)
    begun(queue, a="uv")
    cancelled = queue.put(turns("u2"), Sampling())
    kept = queue.put(turns("v2"), Sampling())
    assert queue.cancel(cancelled) == {}
    assert taken_ids(queue, "a", 9) == ["v2"]
    assert queue.give_back("a") == 1
    assert taken_ids(queue, "b", 9) == ["v2"]
    assert queue.finish("b", kept, completion_of("v2"))
    assert [item.request_id for item in delivered(kept) if isinstance(item, Completion)] == ["v2"]


def test_requests_of_no_episode_are_in_one_line() -> None:
    queue = WorkQueue(600, has_room=lambda _: True)
    job = queue.put([request_of("u"), request_of("v")], Sampling())
    assert taken_ids(queue, "a", 1) == ["u"]
    assert queue.finish("a", job, completion_of("u"))
    assert queue.put([request_of("w")], Sampling())
    assert taken_ids(queue, "b", 9) == ["v", "w"]


def test_only_the_most_recent_episodes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "EPISODES", 2)
    queue = WorkQueue(600, has_room=lambda _: True)
    begun(queue, a="uvw")
    queue.put(turns("u2", "v2", "w2"), Sampling())
    assert taken_ids(queue, "b", 9) == ["u2"]
    assert taken_ids(queue, "a", 9) == ["v2", "w2"]


async def test_an_idle_worker_takes_what_is_left_when_its_own_worker_is_full() -> None:
    room = {"a"}
    queue = WorkQueue(600, has_room=room.__contains__)
    begun(queue, a="uv")
    idle = asyncio.create_task(queue.wait_for_work("b"))
    queue.put(turns("u2", "v2"), Sampling())
    await asyncio.sleep(0)
    assert not idle.done()
    assert taken_ids(queue, "a", 1) == ["u2"]
    room.clear()
    await idle
    assert taken_ids(queue, "b", 9) == ["v2"]


async def test_a_turn_is_kept_for_a_while_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "KEPT_S", 0.01)
    room = {"a"}
    queue = WorkQueue(600, has_room=room.__contains__)
    begun(queue, a="u")
    queue.put(turns("u2"), Sampling())
    idle = asyncio.create_task(queue.wait_for_work("b"))
    await asyncio.sleep(0)
    room.clear()  # it ended, and nobody says so
    await asyncio.wait_for(idle, 60)
    assert taken_ids(queue, "b", 9) == ["u2"]


def test_a_call_s_requests_are_each_finished_once() -> None:
    queue = WorkQueue(600)
    jobs: list[GenerateCall] = [queue.put(turns(name), Sampling()) for name in "uvw"]
    taken = queue.take("a", 9)
    assert [entry.job for entry in taken] == jobs
    for entry in taken:
        assert queue.finish("a", entry.job, completion_of(entry.request.id))
    assert [len(delivered(job)) for job in jobs] == [1, 1, 1]


async def test_a_generator_takes_turns_of_its_own_episodes_beyond_its_part_of_all_requests() -> None:
    scene = Scene()
    await scene.pool.start(base_version=0)
    await scene.pool.scale(2, grace_s=0)
    (one, other), queue = scene.pool.replicas, scene.pool._queue
    job = queue.put(turns("u", "v", "w"), Sampling())
    assert taken_ids(queue, one.holder, 3) == ["u", "v", "w"]
    assert queue.finish(one.holder, job, completion_of("u"))
    queue.put(turns("u2", "x"), Sampling())
    assert (one.free, other.free) == (1, 2), "each has a part of 2 of 4, and one has v and w"
    assert taken_ids(queue, other.holder, 9) == ["x"]
    assert taken_ids(queue, one.holder, one.free) == ["u2"]
    assert queue.finish(one.holder, job, completion_of("v"))
    queue.put(turns("p", "q"), Sampling())
    assert taken_ids(queue, one.holder, 2) == ["p", "q"]
    queue.put(turns("v2"), Sampling())
    assert one.free == 0, "it has w, u2, p and q, and decodes 4 at once"
    await scene.pool.close()
