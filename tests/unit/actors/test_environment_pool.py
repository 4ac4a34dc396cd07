"""Messages to environment actors, and what becomes of episodes when an actor is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlep.actors.environments import BATCH, EnvironmentPool
from rlep.core.episodes import Observation
from rlep.core.errors import ActorLost
from tests.unit.actors.environment_scene import Scene, kills  # noqa: F401 - a fixture
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("kills")]


@asynccontextmanager
async def playing(scene: Scene, **keys: Any) -> AsyncIterator[EnvironmentPool]:
    pool = scene.pool(**keys)
    await pool.start()
    yield pool
    await pool.close()


async def begin(pool: EnvironmentPool, *names: str, columns: str = "{}") -> None:
    await asyncio.gather(*(pool.begin(name, columns, seed=0) for name in names))


def home(pool: EnvironmentPool, name: str) -> str:
    return pool._places[name].replica.name


async def test_calls_of_one_moment_travel_together_and_at_most_so_many() -> None:
    async with playing(scene := Scene()) as pool:
        names = [f"e{number}" for number in range(BATCH + 6)]
        await begin(pool, *names)
        (handle,) = scene.handles
        assert [len(calls) for calls, _ in handle.messages] == [BATCH, 6]
        assert [call[:3] for call in handle.messages[1][0]] == [(BATCH + number, 0, "begin") for number in range(6)]
        observed = await asyncio.gather(*(pool.act(name, name) for name in names[:3]))
        assert [one.texts for one in observed] == [(name,) for name in names[:3]]
        assert handle.messages[2][0] == [(number, 1, "act", (name, name)) for number, name in enumerate(names[:3])]
        assert pool.status().actors[0].in_flight == BATCH + 6
        await pool.end("e0")
        await pool.act("e1", "on")
        assert [over for _, over in handle.messages[3:]] == [[], [0]], "the actor forgets the answer to its end"
        assert pool.status().actors[0].in_flight == BATCH + 5


async def test_one_that_takes_long_keeps_no_other_waiting_and_is_asked_for_again() -> None:
    async with playing(scene := Scene()) as pool:
        await begin(pool, "slow", "fast")
        (handle,) = scene.handles
        handle.actor.late.add("think")
        slow = asyncio.create_task(pool.act("slow", "think"))
        assert (await pool.act("fast", "on")).texts == ("on",)
        await until(lambda: len(handle.messages) == 3, "the slow one to be asked for again")
        assert [call[:3] for call in handle.messages[2][0]] == [(0, 1, "act")]
        assert not slow.done()
        handle.kill()
        assert (await slow).status == "crashed"


async def test_a_turn_that_nobody_waits_for_is_not_asked_for_again() -> None:
    """Its episode may have ended by then, and another have its name."""
    async with playing(scene := Scene()) as pool:
        await begin(pool, "slow", "fast", "third")
        (handle,) = scene.handles
        handle.actor.late |= {"think", "wait"}
        slow, third = (asyncio.create_task(pool.act(*turn)) for turn in (("slow", "think"), ("third", "wait")))
        fast = asyncio.create_task(pool.act("fast", "on"))
        await asyncio.sleep(0)
        slow.cancel()
        await fast
        await until(lambda: len(handle.messages) == 3, "what is left to be asked for again")
        assert [call[2:] for calls, _ in handle.messages[1:] for call in calls] == [
            ("act", ("slow", "think")),
            ("act", ("third", "wait")),
            ("act", ("fast", "on")),
            ("act", ("third", "wait")),
        ]
        third.cancel()


async def test_episodes_begin_where_there_are_fewest_and_stay() -> None:
    async with playing(scene := Scene(), count=2) as pool:
        await begin(pool, *"abcd")
        assert [home(pool, name) for name in "abcd"] == ["environment-0", "environment-1"] * 2
        await pool.end("b")
        await pool.end("d")
        await begin(pool, *"ef")
        assert [home(pool, name) for name in "acef"] == [
            "environment-0",
            "environment-0",
            "environment-1",
            "environment-1",
        ]
        assert (await pool.act("a", "on")).texts == ("on",)
        assert [handle.messages[-1][0][0][3][0] for handle in scene.handles] == ["a", "e"]


async def test_a_lost_actor_takes_its_episodes_with_it_and_what_had_not_begun_begins_elsewhere() -> None:
    async with playing(scene := Scene(), count=2) as pool:
        await begin(pool, "a", "b")
        scene.handles[0].actor.late.add("late")
        late = asyncio.create_task(begin(pool, "c", "d", columns="late"))
        await until(lambda: len(scene.handles[0].messages) == 2, "it to be asked for one that it does not begin")
        assert (home(pool, "a"), home(pool, "c")) == ("environment-0",) * 2
        scene.handles[0].kill()
        await late
        assert [(await pool.act(name, "on")).status for name in "abcd"] == ["crashed", "open", "open", "open"]
        verdict = await pool.end("a")
        assert verdict is not None
        assert (verdict.status, verdict.path) == ("crashed", "gate")
        assert verdict.verifier == "environment:rlep.environments.guess_number:GuessNumber"
        await until(lambda: pool.status().actors[0].state == "serving", "the first to serve again")
        assert sum(row.in_flight for row in pool.status().actors) == 3
        happened = [event.partition(":")[0] for event in scene.events if "environment-0" in event]
        assert happened == [f"actor_{what} environment-0" for what in ("started", "lost", "restarted")]


async def test_without_a_restart_left_nothing_begins_and_the_reason_is_said() -> None:
    async with playing(scene := Scene(), restarts=2) as pool:
        await begin(pool, "a")
        scene.failing_starts = 2
        waiting = asyncio.create_task(pool.act("a", "on"))
        scene.handles[0].kill()
        assert (await waiting).reason.startswith("environment-0 was lost: ")
        with pytest.raises(ActorLost, match=r"no environment is left; environment-0 was lost and is out of restarts: "):
            await pool.begin("b", "{}", seed=0)
        assert (pool.status().actors[0].state, pool.status().actors[0].restarts) == ("lost", 2)
        assert len(scene.handles) == 3


async def test_an_answer_that_nobody_waits_for_holds_nothing_up() -> None:
    async with playing(scene := Scene()) as pool:
        await begin(pool, "a")
        scene.handles[0].actor.late.add("think")
        given_up = asyncio.create_task(pool.act("a", "think"))
        await until(lambda: len(scene.handles[0].messages) == 2, "the turn to be asked for")
        given_up.cancel()
        assert await pool.end("a") is None
        assert await pool.end("a") is None
        assert await pool.act("a", "on") == Observation(
            status="crashed", reason="there is no episode a: it was not begun, or was ended"
        )
        assert pool.status().actors[0].in_flight == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_one_that_leaves_takes_no_more_episodes_and_waits_for_its_own(ends: bool) -> None:
    async with playing(scene := Scene(), count=2) as pool:
        await begin(pool, "a", "b")
        scaling = asyncio.create_task(pool.scale(1, 60 if ends else 0))
        await until(lambda: pool.status().actors[-1].state != "serving" or scaling.done(), "the second to leave")
        await begin(pool, "c")
        assert (home(pool, "b"), home(pool, "c")) == ("environment-1", "environment-0")
        if ends:
            assert (await pool.act("b", "on")).texts == ("on",)
            assert not scaling.done()
            assert await pool.end("b") is None
        await scaling
        assert [row.name for row in pool.status().actors] == ["environment-0"]
        assert scene.events[-1] == f"actor_drained environment-1{'' if ends else ': 1 episode crashed'}"
        if not ends:
            assert (await pool.act("b", "on")).status == "crashed"
