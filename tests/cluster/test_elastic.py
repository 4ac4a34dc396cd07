"""Generators and verifiers come, go, hang and die while a run is at work: every request is answered exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import pytest_asyncio
import ray

from rlep.actors.cluster import Cluster
from rlep.actors.control import Command, Drain, Look, RunClient, RunStatus, Scale
from rlep.actors.generators import GeneratorPool
from rlep.actors.replicas import ActorStatus
from rlep.actors.verifiers import VerifierPool
from rlep.check.inputs import Subject
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, PlacementError
from rlep.core.types import Completion, Prompt, Request, Sampling
from rlep.launch.roles import run_actors
from tests.small import BASE, small_task
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
VERSION = 1
DEADLINE_S = 240


@dataclass
class ElasticRun:
    """What the tests of this file share."""

    cluster: Cluster
    generators: GeneratorPool
    verifiers: VerifierPool
    prompts: tuple[Prompt, ...]
    happened: list[tuple[str, str, str]]

    async def do(self, command: Command) -> RunStatus:
        """As another process would ask for it."""
        return await RunClient(self.cluster).ask(command, deadline_s=DEADLINE_S)

    async def until(self, role: str, holds: Callable[[list[ActorStatus]], bool]) -> None:
        """Wait until the actors of a role are in some state."""

        async def reached() -> bool:
            return holds(actors(await self.do(Look()), role))

        await until(reached, f"the {role}s", poll=0.1)

    async def pid(self, name: str) -> int:
        """The process of an actor."""
        if name.startswith("verifier"):
            found = next(found for found in self.verifiers._replicas.members if found.name == name)
            return int(await (await found.actor.handle()).ping.remote())
        replica = next(replica for replica in self.generators.replicas if replica.name == name)
        assert replica.actor.living is not None
        return int(await replica.actor.living.ping.remote())


def actors(status: RunStatus, role: str) -> list[ActorStatus]:
    """The actors of one role."""
    return [actor for found in status.roles if found.role == role for actor in found.actors]


def names(status: RunStatus, role: str) -> list[str]:
    """Who there is."""
    return [actor.name for actor in actors(status, role)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def elastic(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ElasticRun]:
    """One generator that has moved on from the base weights, and one verifier."""
    home = tmp_path_factory.mktemp("elastic")
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', "run.name=elastic", "cluster.cpus=4"]
    times = ["generator.lease_s=5", "verifier.heartbeat_timeout_s=5", "verifier.cpus=0.25"]
    config = load_config([BASE], [*overrides, *times])
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    happened: list[tuple[str, str, str]] = []
    async with run_actors(config, lambda *event: happened.append(event)) as actors_of_run:
        generators, verifiers, learners = (
            actors_of_run.generators(),
            actors_of_run.verifiers(),
            actors_of_run.learners(),
        )
        actors_of_run.control()
        await actors_of_run.started()
        weights = actors_of_run.weights(learners, generators, inputs.train.prompts)
        await weights.publish(0)
        await weights.publish(VERSION)
        yield ElasticRun(actors_of_run.cluster, generators, verifiers, inputs.train.prompts, happened)


@asynccontextmanager
async def rollouts(elastic: ElasticRun, label: str) -> AsyncIterator[None]:
    """Rollouts of 8 prompts x 32 samples, one after the other, while the block lasts; each must be complete."""
    enough = asyncio.Event()

    async def roll() -> None:
        number = 0
        while not enough.is_set():
            await rollout(elastic, f"{label}-{number}")
            number += 1

    rolling = asyncio.create_task(roll())
    try:
        yield
    finally:
        enough.set()
        await asyncio.wait_for(rolling, DEADLINE_S)


async def rollout(elastic: ElasticRun, label: str) -> None:
    """One rollout: exactly 32 distinct samples of each prompt, under the present policy."""
    wanted = [
        Request(f"{label}/{prompt.id}/{sample}", prompt.id, prompt.tokens, sample, seed=sample)
        for prompt in elastic.prompts[:8]
        for sample in range(32)
    ]
    answers = [one async for one in elastic.generators.generate(wanted, Sampling(max_tokens=48), deadline_s=DEADLINE_S)]
    expected = Counter((prompt.id, sample) for prompt in elastic.prompts[:8] for sample in range(32))
    assert Counter((one.prompt_id, one.sample) for one in answers) == expected
    assert {one.policy_version for one in answers} == {VERSION}


async def test_new_generators_serve_the_current_weights_in_the_middle_of_a_rollout(elastic: ElasticRun) -> None:
    async with rollouts(elastic, "grown"):
        status = await elastic.do(Scale("generators", 3, 60))
        assert names(status, "generator") == ["generator-0", "generator-1", "generator-2"]
        assert {(actor.state, actor.version) for actor in actors(status, "generator")} == {("serving", VERSION)}
        await elastic.until("generator", lambda found: all(actor.tokens_per_second for actor in found))


async def test_the_leases_of_a_silent_generator_end_and_its_work_is_done_by_others(elastic: ElasticRun) -> None:
    silent, before = await elastic.pid("generator-1"), elastic.generators.reissued.retried
    async with rollouts(elastic, "leased"):
        await elastic.until("generator", lambda found: found[1].in_flight >= 32)
        os.kill(silent, signal.SIGSTOP)
    assert elastic.generators.reissued.retried > before
    os.kill(silent, signal.SIGCONT)
    await rollout(elastic, "continued")
    assert [event for event, name, _ in elastic.happened if name == "generator-1"] == ["actor_started"]


async def test_generators_hang_die_and_go_in_the_middle_of_rollouts(elastic: ElasticRun) -> None:
    async with rollouts(elastic, "shrunk"):
        hung, dead = await elastic.pid("generator-1"), await elastic.pid("generator-2")
        await elastic.until("generator", lambda found: all(actor.in_flight for actor in found))
        os.kill(hung, signal.SIGSTOP)
        os.kill(dead, signal.SIGKILL)
        assert names(await elastic.do(Scale("generators", 1, 2)), "generator") == ["generator-0"]
    left = sorted(name for event, name, _ in elastic.happened if event == "actor_drained")
    assert left == ["generator-1", "generator-2"]


async def test_a_command_given_twice_does_nothing_the_second_time(elastic: ElasticRun) -> None:
    before = len(elastic.happened)
    assert names(await elastic.do(Scale("generators", 1, 2)), "generator") == ["generator-0"]
    assert names(await elastic.do(Drain("generator-1", 2)), "generator") == ["generator-0"]
    assert len(elastic.happened) == before


@pytest.mark.parametrize(
    ("actor", "message"),
    [
        ("generator-0", "generator-0 is the only generator: add another first"),
        ("generator-9", "there is no generator-9; there are generator-0"),
        ("learner-0", "learner-0 cannot be drained: only generators, verifiers and environments can"),
    ],
)
async def test_an_actor_that_cannot_be_drained_is_refused(elastic: ElasticRun, actor: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await elastic.do(Drain(actor, 2))


async def test_too_many_generators_are_refused_with_the_reason_and_the_others_stay(elastic: ElasticRun) -> None:
    with pytest.raises(PlacementError, match=r"of 39 new generators did not start: .* this machine has 4 CPU"):
        await elastic.do(Scale("generators", 40, 60))
    status = await elastic.do(Scale("generators", 1, 60))
    assert {(actor.state, actor.version) for actor in actors(status, "generator")} == {("serving", VERSION)}
    await rollout(elastic, "after")


def answer(prompt: Prompt, sample: int) -> Completion:
    """A right answer where ``sample`` is even."""
    text = rf"\boxed{{{prompt.reference if sample % 2 == 0 else 'no'}}}"
    return Completion(f"v/{sample}", prompt.id, sample, np.array([5]), np.zeros(1, np.float32), "stop", VERSION, text)


async def test_verifiers_come_hang_die_and_go_while_they_grade(elastic: ElasticRun) -> None:
    prompt = elastic.prompts[0]
    enough = asyncio.Event()

    async def grade() -> None:
        while not enough.is_set():
            verdicts = await elastic.verifiers.grade(prompt, [answer(prompt, sample) for sample in range(256)])
            assert [verdict.status == "correct" for verdict in verdicts] == [True, False] * 128

    grading = [asyncio.create_task(grade()) for _ in range(2)]
    assert names(await elastic.do(Scale("verifiers", 3, 60)), "verifier") == ["verifier-0", "verifier-1", "verifier-2"]
    await elastic.until("verifier", lambda found: all(actor.in_flight for actor in found))
    hung, dead = await elastic.pid("verifier-0"), await elastic.pid("verifier-2")
    os.kill(hung, signal.SIGSTOP)
    os.kill(dead, signal.SIGKILL)
    status = await elastic.do(Scale("verifiers", 2, 60))
    assert names(status, "verifier") == ["verifier-0", "verifier-1"]
    await elastic.until("verifier", lambda found: found[0].restarts == 1)
    assert names(await elastic.do(Drain("verifier-0", 0)), "verifier") == ["verifier-1"]
    enough.set()
    await asyncio.gather(*grading)


async def test_a_private_cluster_keeps_no_record_of_all_these_calls(elastic: ElasticRun) -> None:
    await rollout(elastic, "recorded")
    assert ray.timeline() == []
