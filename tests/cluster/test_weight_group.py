"""Two learner ranks and two generators as one gloo group: who dies is left out, who comes joins at the next publication."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Subject
from rlep.config.settings import load_config
from rlep.core.errors import WeightsLost
from rlep.core.types import Prompt, Request, Sampling
from rlep.launch.roles import run_actors
from tests.conftest import own_processes
from tests.small import BASE, small_task
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
DEADLINE_S = 240.0


@dataclass
class Cast:
    """What the tests of this file share."""

    generators: GeneratorPool
    weights: WeightPublisher
    prompts: tuple[Prompt, ...]
    learners: Learners

    def versions(self) -> dict[str, int | None]:
        """What each generator serves."""
        return {actor.name: actor.version for actor in self.generators.status().actors}

    async def pid(self, name: str) -> int:
        """Of a living generator."""
        replica = next(replica for replica in self.generators.replicas if replica.name == name)
        assert replica.actor.living is not None
        return int(await replica.actor.living.ping.remote())

    async def both_back(self) -> None:
        """Wait for the supervisor to start what was lost."""
        await until(lambda: len(self.generators.living()) == 2, "both generators")

    async def rollout(self, label: str, victim: int | None = None) -> set[int]:
        """The policy versions of 8 prompts' answers, one per request; ``victim`` is killed after the first."""
        wanted = [
            Request(f"{label}/{prompt.id}/{sample}", prompt.id, prompt.tokens, sample, seed=sample)
            for prompt in self.prompts[:8]
            for sample in range(16)
        ]
        found = {}
        async for one in self.generators.generate(wanted, Sampling(max_tokens=48), deadline_s=DEADLINE_S):
            assert one.request_id not in found
            found[one.request_id] = one.policy_version
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                victim = None
        assert found.keys() == {request.id for request in wanted}
        return set(found.values())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cast(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cast]:
    """Nothing is published yet."""
    home = tmp_path_factory.mktemp("group")
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', "run.name=group", "cluster.cpus=4"]
    group = ['generator.transfer="gloo"', "generator.transfer_deadline_s=60", "generator.heartbeat_timeout_s=15"]
    config = load_config([BASE], [*overrides, *group, "generator.count=2", "learner.ranks=2"])
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    async with run_actors(config) as actors:
        generators, learners = actors.generators(), actors.learners()
        actors.verifiers()
        actors.pool(inputs, read_only=False)
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        yield Cast(generators, weights, inputs.train.prompts, learners)


async def test_both_generators_take_every_version_and_score_like_the_learner(cast: Cast) -> None:
    for version in (0, 1):
        assert 0 < await cast.weights.publish(version) <= 1e-4
        assert cast.versions() == {"generator-0": version, "generator-1": version}
    assert await cast.rollout("first") == {1}


async def test_every_process_of_a_private_run_listens_on_loopback_only(cast: Cast, tmp_path: Path) -> None:
    await cast.learners.save(tmp_path / "checkpoint")  # by a group of its own
    await cast.learners.written()
    heard: dict[str, set[str]] = {}
    for process in [psutil.Process(), *own_processes()]:
        with suppress(psutil.NoSuchProcess):
            sockets = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            addresses = {one.laddr.ip.removeprefix("::ffff:") for one in sockets}
            heard.setdefault(" ".join(process.cmdline()), set()).update(addresses)
    for name in ("gcs_server", "raylet", "LearnerActor", "GeneratorActor", "redis-server"):
        assert any(name in title for title in heard), (name, *heard)
    assert {title: found for title, found in heard.items() if found - {"127.0.0.1"}} == {}
    assert any(found for title, found in heard.items() if "LearnerActor" in title)


async def test_a_generator_killed_in_a_rollout_comes_back_and_serves_from_the_next_publication(cast: Cast) -> None:
    assert await cast.rollout("killed", victim=await cast.pid("generator-0")) == {1}
    await cast.both_back()
    assert await cast.rollout("without") == {1}
    assert await cast.weights.publish(2) <= 1e-4
    assert cast.versions() == {"generator-0": 2, "generator-1": 2}
    assert await cast.rollout("with") == {2}


async def test_a_generator_that_hangs_in_a_transfer_is_left_out_of_the_next_attempt(cast: Cast) -> None:
    process = psutil.Process(await cast.pid("generator-1"))
    for one in (process, *process.children(recursive=True)):
        one.suspend()
    assert await cast.weights.publish(3) <= 1e-4
    assert cast.versions()["generator-0"] == 3
    assert await cast.rollout("alone") == {3}
    await cast.both_back()
    assert await cast.weights.publish(4) <= 1e-4
    assert cast.versions() == {"generator-0": 4, "generator-1": 4}


async def test_a_rollout_whose_generators_are_all_lost_ends_and_begins_again_with_the_version_sent_again(
    cast: Cast,
) -> None:
    assert await cast.weights.publish(4) <= 1e-4  # both have them already, unless this test runs alone
    for name in ("generator-0", "generator-1"):
        os.kill(await cast.pid(name), signal.SIGKILL)
    with pytest.raises(WeightsLost, match="no generator has the policy's weights any more: generator-0: "):
        await cast.rollout("nobody")
    await cast.both_back()
    with pytest.raises(WeightsLost):  # they live, and have none
        await cast.rollout("nothing")
    assert await cast.weights.publish(4) <= 1e-4
    assert await cast.rollout("again") == {4}
