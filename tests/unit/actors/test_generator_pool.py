"""Generators that are lost, start again, take weights, leave: who answers what, and which rollouts end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlep.actors import generator_replica
from rlep.actors.generator_replica import GeneratorReplica, GeneratorState
from rlep.actors.replicas import ActorStatus
from rlep.core.errors import ActorLost, ConfigError, DeadlineExceeded, ModelError, WeightsLost, WeightSyncError
from tests.unit.actors.generator_scene import Scene, in_group, in_memory, kills
from tests.waiting import until

pytestmark = pytest.mark.asyncio
__all__ = ["kills"]


async def in_transfer(scene: Scene, version: int) -> None:
    """Bring every living generator to a version, as over gloo."""
    await scene.pool.take(dict.fromkeys(scene.pool.living(), in_group(version)), deadline_s=1)


async def started(count: int, version: int | None = 3, transfer: str = "gloo", restarts: int = 3) -> Scene:
    """Generators that serve a version, or nothing yet."""
    scene = Scene(transfer, restarts)
    await scene.pool._set.start(count)
    if version is not None and transfer == "gloo":
        await in_transfer(scene, version)
    elif version is not None:
        await scene.pool.publish(in_memory(version), deadline_s=1)
    return scene


def lose(replica: GeneratorReplica) -> None:
    """As a heartbeat that is not answered."""
    actor = replica.actor.living
    assert actor is not None
    replica.lose(actor, ActorLost(f"{replica.name} died"))


async def all_up(scene: Scene) -> None:
    """Wait until every generator has an actor again."""
    await until(lambda: len(scene.pool.living()) == len(scene.pool.replicas), "the generators", poll=0.001)


async def test_the_rollout_ends_with_the_last_that_has_weights_and_not_before() -> None:
    scene = await started(2)
    rollout = asyncio.create_task(scene.answers("a", "b", deadline_s=60))
    await asyncio.sleep(0.01)
    lose(scene.pool.replicas[0])
    await all_up(scene)
    assert not rollout.done()
    lose(scene.pool.replicas[1])
    with pytest.raises(
        WeightsLost, match=r"^no generator has the policy's weights any more: generator-0: generator-0 died$"
    ):
        await rollout
    with pytest.raises(WeightsLost):  # they live, and have none
        await scene.answers("a")
    await scene.pool.close()


async def test_generators_that_are_lost_in_one_instant_answer_again_after_the_next_transfer() -> None:
    scene = await started(2)
    rollout = asyncio.create_task(scene.answers("a", "b", "c", "d"))
    await asyncio.sleep(0.01)
    assert [scene.actor(number).taken for number in (0, 1)] == [["a", "b"], ["c", "d"]]
    for number in (0, 1):
        scene.actor(number).dead.set()
    with pytest.raises(WeightsLost):
        await rollout
    await all_up(scene)
    await in_transfer(scene, 4)
    for number in (0, 1):
        scene.actor(number).answers.set()
    first, second = ("generator-0", 4), ("generator-1", 4)
    assert await scene.answers("e", "f", "g", "h") == {"e": first, "f": first, "g": second, "h": second}
    await scene.pool.close()


async def test_what_a_stream_ends_without_is_given_out_again() -> None:
    scene = await started(1)
    scene.actor(0).ends_without = {"b"}
    scene.actor(0).answers.set()
    assert await scene.answers("a", "b") == dict.fromkeys("ab", ("generator-0", 3))
    assert scene.actor(0).taken == ["a", "b", "b"]
    await scene.pool.close()


@pytest.mark.parametrize(("rollout", "taken"), [({}, 5), ({"max_staleness": 1, "partial": "keep"}, 4)])
async def test_none_waits_in_an_engine_whose_new_weights_wait_for_no_response(
    rollout: dict[str, Any], taken: int
) -> None:
    """Four are decoded at once. Those set back by an update go on before the check of its log-probs does."""
    scene = Scene(**rollout)
    await scene.pool._set.start(1)
    await in_transfer(scene, 3)
    answers = asyncio.create_task(scene.answers(*"abcdefgh", deadline_s=60))
    await until(lambda: len(scene.actor(0).taken) >= 4, "the requests")
    assert len(scene.actor(0).taken) == taken
    scene.actor(0).answers.set()
    assert len(await answers) == 8
    await scene.pool.close()


async def test_ray_is_asked_what_is_missing_only_for_a_generator_without_a_place() -> None:
    scene = await started(1)
    assert [row.error for row in scene.pool.status().actors] == [""]
    assert scene.asked == 0
    scene.places.clear()
    growing = asyncio.create_task(scene.pool.scale(2, grace_s=1))
    await until(lambda: len(scene.pool.replicas) == 2, "the second generator")
    assert [row.error for row in scene.pool.status().actors] == ["", "waits for a place"]
    assert scene.asked == 1
    scene.places.set()
    await growing
    await scene.pool.close()


async def test_a_lost_generator_s_work_is_done_by_the_other_and_reported_once() -> None:
    scene = await started(2, transfer="shared_memory")
    rollout = asyncio.create_task(scene.answers("a", "b"))
    await asyncio.sleep(0.01)
    scene.actor(1).answers.set()
    scene.actor(0).dead.set()
    assert await rollout == dict.fromkeys("ab", ("generator-1", 3))
    await all_up(scene)
    assert [event[:2] for event in scene.events[2:]] == [
        ("actor_lost", "generator-0"),
        ("actor_restarted", "generator-0"),
    ]
    assert [row.version for row in scene.pool.status().actors] == [3, 3]
    await scene.pool.close()


async def test_one_that_takes_part_in_a_transfer_is_waited_for() -> None:
    scene = await started(1, version=None)
    async with scene.pool.replicas[0]._loading:
        with pytest.raises(DeadlineExceeded, match="1 of 1 completions missing after 0 s, first a; 1 waiting"):
            await scene.answers("a", deadline_s=0.05)
    await scene.pool.close()


async def test_a_late_rollout_says_who_holds_its_requests() -> None:
    scene = await started(1)
    with pytest.raises(DeadlineExceeded, match=r"0 waiting for a generator; generator-0 \(serving\) has 2$"):
        await scene.answers("a", "b", deadline_s=0.05)
    await scene.pool.close()


async def test_the_last_with_weights_leaves_and_a_load_that_ends_does_not_call_it_back() -> None:
    scene = await started(2, version=None)
    leaving = scene.pool.replicas[0]
    await leaving.load(in_group(3), 1)
    rollout = asyncio.create_task(scene.answers("a", deadline_s=60))
    await asyncio.sleep(0.01)
    left = asyncio.create_task(leaving.leave(0.05))
    await asyncio.sleep(0.01)
    await leaving.load(in_group(4), 1)
    assert leaving.state is GeneratorState.LEAVING
    await left
    with pytest.raises(WeightsLost):
        await rollout
    await scene.pool.close()


async def test_starts_that_fail_cost_restarts_and_when_none_is_left_the_rollout_ends() -> None:
    scene = await started(1, restarts=2)
    rollout = asyncio.create_task(scene.answers("a", deadline_s=60))
    await asyncio.sleep(0.01)
    scene.pool._fleet.weights = 0  # so that it is not the weights it lacks
    scene.failing_starts = 1
    lose(scene.pool.replicas[0])
    await all_up(scene)
    assert scene.pool.replicas[0].actor.restarts == 2
    lose(scene.pool.replicas[0])
    with pytest.raises(ActorLost, match=r"^no generator is left; generator-0: generator-0 died$"):
        await rollout
    assert [row.state for row in scene.pool.status().actors] == ["lost"]
    with pytest.raises(ActorLost, match="no generator is left"):
        scene.pool.living()
    await scene.pool.close()


async def test_a_generator_that_refuses_weights_twice_is_replaced_and_its_successor_has_them() -> None:
    scene = await started(1, transfer="shared_memory")
    scene.refusals = 1
    assert await scene.pool.publish(in_memory(4), deadline_s=1) == 1e-6
    assert scene.pool.replicas[0].actor.restarts == 0
    scene.refusals = 2
    assert await scene.pool.publish(in_memory(5), deadline_s=1) == 1e-6
    assert scene.pool.replicas[0].actor.restarts == 1
    assert scene.pool.status().actors[0].version == 5
    await scene.pool.close()


@pytest.mark.parametrize("transfer", ["shared_memory", "gloo"])
async def test_weights_of_another_model_end_the_publication_at_once_and_cost_no_restart(transfer: str) -> None:
    scene = await started(2, transfer=transfer)
    scene.refusals, scene.refusal = 1, ModelError
    parts = dict.fromkeys(scene.pool.living(), in_group(4))
    publishing = (
        scene.pool.publish(in_memory(4), deadline_s=60)
        if transfer == "shared_memory"
        else scene.pool.take(parts, deadline_s=60)
    )
    with pytest.raises(ModelError, match=r"^generator-[01] refuses 4$"):
        await publishing
    assert [replica.actor.restarts for replica in scene.pool.replicas] == [0, 0]
    await scene.pool.close()


async def test_what_the_settings_forbid_ends_the_publication_at_once_and_nobody_is_started_again() -> None:
    scene = await started(2, version=None, transfer="shared_memory")
    scene.refusals, scene.refusal = 2, ConfigError
    with pytest.raises(WeightSyncError, match=r"^no generator loaded policy version 4: generator-[01] refuses 4$"):
        await scene.pool.publish(in_memory(4), deadline_s=60)
    assert all(replica.out_of_restarts for replica in scene.pool.replicas)
    assert [event for event, _, _ in scene.events].count("actor_restarted") == 0
    await scene.pool.close()


async def test_one_that_comes_back_on_another_node_waits_for_a_learner_that_may_follow_it() -> None:
    scene = await started(1, transfer="shared_memory")
    scene.refusals, scene.refusal = 1, ConfigError
    lose(scene.pool.replicas[0])
    await all_up(scene)
    assert scene.pool.replicas[0].actor.restarts == 2
    await scene.pool.close()


async def test_a_transfer_names_who_refused_and_who_was_not_there() -> None:
    scene = await started(1)
    scene.refusals = 1
    parts = dict.fromkeys(["generator-0.0", "generator-1.0"], in_group(4))
    with pytest.raises(WeightSyncError, match=r"^generator-0\.0: generator-0 refuses 4; generator-1\.0: lost$"):
        await scene.pool.take(parts, deadline_s=1)
    assert scene.pool.replicas[0].state is GeneratorState.UP
    await scene.pool.close()


async def test_a_generator_that_sleeps_serves_nothing_until_it_wakes_with_the_last_weights() -> None:
    scene = await started(1, transfer="shared_memory")
    scene.actor(0).answers.set()
    await scene.pool.sleep()
    assert [(row.state, row.version) for row in scene.pool.status().actors] == [("serving", None)]
    rollout = asyncio.create_task(scene.answers("a"))
    await asyncio.sleep(0.01)
    assert scene.actor(0).taken == []
    await scene.pool.wake()
    assert await rollout == {"a": ("generator-0", 3)}
    await scene.pool.close()


async def test_the_use_of_the_kv_caches_is_of_the_step_and_requests_set_back_are_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generator_replica, "HEARTBEAT_S", 0.001)
    scene = Scene()
    scene.caches = iter([(0.5, 2), (0.875, 3), (0.25, 0)])
    await scene.pool._set.start(1)

    def row() -> ActorStatus:
        return scene.pool.status().actors[0]

    assert (row().kv_use, row().preempted) == (None, 0)
    await until(lambda: row().preempted == 5 and row().kv_use == 0.0, "three heartbeats and one more", poll=0.001)
    assert scene.pool.cache_metrics() == {"generator/kv_use": 0.875, "generator/preempted": 5}
    lose(scene.pool.replicas[0])
    assert row().preempted == 5  # those of the engine before count
    scene.pool.cache_metrics()
    assert scene.pool.cache_metrics() == {"generator/preempted": 5}  # no heartbeat since
    await scene.pool.close()
