"""The driver's port of environments: worker processes, actors that have them, and the fake of other tests behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlep.actors.environments import EnvironmentActor
from rlep.config.environment import EnvironmentConfig
from rlep.core.episodes import Observation
from rlep.core.types import Verdict
from rlep.driver.ports import Environments
from rlep.services.environment.local import LocalEnvironments
from tests.unit.actors.environment_scene import Scene, kills  # noqa: F401 - a fixture
from tests.unit.driver.episode_scene import FakeEnvironments

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("kills")]
FACTORY = "tallies:Tally"


@pytest.fixture(params=["workers", "actors", "fake"])
async def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Environments]:
    """Environments that count their turns. Every message to an actor comes twice, as where Ray lost its answer."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    if request.param == "fake":
        turns = [Observation((str(number),)) for number in range(1, 9)]
        yield FakeEnvironments(
            turns, tools=(), verdict=Verdict("wrong", None, f"environment:{FACTORY}", "1", score=0.2)
        )
    elif request.param == "workers":
        local = LocalEnvironments(EnvironmentConfig(factory=FACTORY, workers=2), idle_s=600)
        await local.start()
        yield local
        local.close()
    else:
        kind = EnvironmentActor.__ray_metadata__.modified_class  # type: ignore[attr-defined]
        pool = Scene(kind, times=2).pool(factory=FACTORY, count=2)
        await pool.start()
        yield pool
        await pool.close()


async def test_each_turn_of_an_episode_is_acted_once_and_in_order(port: Environments) -> None:
    names = [f"e{number}" for number in range(20)]
    begun = await asyncio.gather(*(port.begin(name, "{}", seed=0) for name in names))
    assert {(one.status, one.texts) for one in begun} == {("open", ())}
    for turn in "12":
        observed = await asyncio.gather(*(port.act(name, "on") for name in names))
        assert {(one.status, one.texts) for one in observed} == {("open", (turn,))}
    verdicts = await asyncio.gather(*(port.end(name) for name in names))
    assert {(one.status, one.score, one.verifier) for one in verdicts if one} == {
        ("wrong", 0.2, f"environment:{FACTORY}")
    }
    assert await asyncio.gather(*(port.end(name) for name in names)) == [None] * 20
    assert tuple(port.tools) == ()


async def test_an_episode_that_was_not_begun_or_was_ended_is_crashed(port: Environments) -> None:
    assert (await port.act("e", "on")).status == "crashed"
    assert await port.end("e") is None
    await port.begin("e", "{}", seed=0)
    await port.end("e")
    assert (await port.act("e", "on")).status == "crashed"


async def test_an_episode_that_begins_again_begins_anew(port: Environments) -> None:
    for _ in range(2):
        await port.begin("e", "{}", seed=0)
        assert (await port.act("e", "on")).texts == ("1",)
    assert (await port.act("e", "on")).texts == ("2",)
