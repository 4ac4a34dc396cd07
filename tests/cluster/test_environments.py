"""Environments as actors: episodes stay where they began, are crashed with their actor, and a turn is acted once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from rlep.actors.control import Command, Drain, RunClient, RunStatus, Scale
from rlep.actors.environments import EnvironmentPool
from rlep.actors.replicas import ActorStatus
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.launch.roles import RunActors, run_actors
from tests.small import BASE, small_task
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 120
GAMES = Path(__file__).parents[1] / "services" / "environment"


@dataclass
class Run:
    """A run with environments."""

    actors: RunActors
    environments: EnvironmentPool
    happened: list[tuple[str, str, str]]

    async def do(self, command: Command) -> RunStatus:
        """As another process would ask for it."""
        return await RunClient(self.actors.cluster).ask(command, deadline_s=DEADLINE_S)

    def rows(self) -> dict[str, ActorStatus]:
        """The present environments."""
        return {row.name: row for row in self.environments.status().actors}

    async def begin(self, *episodes: str) -> None:
        """Begin them at once."""
        begun = [self.environments.begin(episode, "{}", seed=0) for episode in episodes]
        assert {one.status for one in await asyncio.gather(*begun)} == {"open"}

    def home(self, episode: str) -> str:
        """The environment that has it."""
        return self.environments._places[episode].replica.name

    async def pid(self, name: str) -> int:
        """The process of an actor."""
        found = next(found for found in self.environments._replicas.members if found.name == name)
        return int(await (await found.actor.handle()).ping.remote())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    home = tmp_path_factory.mktemp("environments")
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', "run.name=environments", "cluster.cpus=2"]
    keys = ['environment.factory="tallies:Tally"', "environment.observation_tokens=8", "environment.cpus=0.25"]
    happened: list[tuple[str, str, str]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(GAMES))
        patched.setenv("PYTHONPATH", f"{GAMES}:{os.environ.get('PYTHONPATH', '')}")
        config = load_config([BASE], [*overrides, *keys])
        async with run_actors(config, lambda *event: happened.append(event)) as actors:
            environments = actors.environments()
            assert environments is not None
            actors.control()
            await actors.started()
            yield Run(actors, environments, happened)


async def turn(run: Run, episode: str) -> str:
    """The answer to a turn, or how its episode failed."""
    observed = await run.environments.act(episode, "on")
    return observed.texts[0] if observed.texts else observed.status


async def test_a_turn_whose_message_comes_again_is_acted_once(run: Run) -> None:
    await run.begin("again")
    assert [await turn(run, "again") for _ in range(2)] == ["1", "2"]
    place = run.environments._places["again"]
    message = [(place.number, 2, "act", ("again", "on"))], ()  # as Ray sends it again when its answer was lost
    answers = await asyncio.gather(*(place.handle.answer.remote(*message) for _ in range(3)))
    assert [answer[0].texts for answer in answers] == [("2",)] * 3
    assert await turn(run, "again") == "3"
    verdict = await run.environments.end("again")
    assert verdict is not None
    assert (verdict.status, verdict.score, verdict.verifier) == ("wrong", 0.3, "environment:tallies:Tally")


async def test_a_scaled_role_shares_the_episodes_and_one_that_leaves_finishes_its_own(run: Run) -> None:
    await run.begin("old")
    status = await run.do(Scale("environments", 2, 60))
    found = next(role for role in status.roles if role.role == "environment")
    assert [(row.name, row.state) for row in found.actors] == [
        ("environment-0", "serving"),
        ("environment-1", "serving"),
    ]
    await run.begin("first", "second", "third")
    assert [run.home(name) for name in ("old", "first", "second", "third")].count("environment-1") == 2
    leaving = [name for name in ("first", "second", "third") if run.home(name) == "environment-1"]

    scaling = asyncio.create_task(run.do(Scale("environments", 1, DEADLINE_S)))
    await until(lambda: run.rows()["environment-1"].state == "leaving", "the second to leave")
    await run.begin("new", "newer")
    assert {run.home("new"), run.home("newer")} == {"environment-0"}
    assert [await turn(run, name) for name in leaving] == ["1", "1"], "its episodes go on"
    assert not scaling.done()
    for name in ("old", "first", "second", "third", "new", "newer"):
        verdict = await run.environments.end(name)
        assert verdict is not None
        assert verdict.status == "wrong"
    await scaling
    assert list(run.rows()) == ["environment-0"]
    assert ("actor_drained", "environment-1", "") in run.happened


async def test_episodes_of_an_actor_that_is_killed_are_crashed_and_the_others_go_on(run: Run) -> None:
    await run.do(Scale("environments", 2, 60))
    one, other = list(run.rows())
    names = [f"e{number}" for number in range(6)]
    await run.begin(*names)
    lost = [name for name in names if run.home(name) == other]
    assert len(lost) == 3
    os.kill(await run.pid(other), signal.SIGKILL)
    said = dict(zip(names, await asyncio.gather(*(turn(run, name) for name in names)), strict=True))
    assert said == {name: "crashed" if name in lost else "1" for name in names}
    verdicts = {name: await run.environments.end(name) for name in names}
    assert {name for name, verdict in verdicts.items() if verdict and verdict.status == "crashed"} == {*lost}
    crashed = verdicts[lost[0]]
    assert crashed is not None
    assert crashed.reason.startswith(f"{other} was lost: ")
    await until(lambda: run.rows()[other].state == "serving", "the other to serve again")
    assert run.rows()[other].restarts == 1
    assert run.rows()[one].restarts == 0
    await run.begin(*names)
    assert {run.home(name) for name in names} == {one, other}
    assert [await turn(run, name) for name in names] == ["1"] * 6
    for name in names:
        await run.environments.end(name)
    assert {row.in_flight for row in run.rows().values()} == {0}


async def test_one_that_must_leave_at_once_crashes_its_episodes(run: Run) -> None:
    one, other = list(run.rows())
    await run.begin("stays", "goes")
    assert (run.home("stays"), run.home("goes")) == (one, other)
    await run.do(Drain(other, 0))
    assert (await turn(run, "stays"), await turn(run, "goes")) == ("1", "crashed")
    verdict = await run.environments.end("goes")
    assert verdict is not None
    assert verdict.status == "crashed"
    assert ("actor_drained", other, "1 episode crashed") in run.happened
    await run.environments.end("stays")
    with pytest.raises(ConfigError, match=f"{one} is the only environment: add another first"):
        await run.do(Drain(one, 0))
    assert ray.is_initialized()
