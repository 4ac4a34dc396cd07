"""Generators on the learner's devices, on real actors: a generator of two workers takes turns with two ranks."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
import torch

from rlep.actors.cluster import Cluster
from rlep.actors.colocation import GUEST, Colocated
from rlep.actors.generator_replica import GeneratorState
from rlep.actors.generators import GeneratorPool
from rlep.actors.learner_actor import LearnerActor
from rlep.actors.placement import BundleSlot
from rlep.check.inputs import Subject
from rlep.cli.progress import TerminalProgress
from rlep.config.roles import ActorConfig, ClusterConfig, GeneratorConfig, LearnerConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, PlacementError
from rlep.core.types import Completion, Reissued, Request, Sampling
from rlep.data.prompts import PromptSet
from rlep.driver import ports
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.rollout import OnPolicyRollouts
from rlep.driver.step import run_step
from rlep.launch.roles import RunActors, run_actors
from rlep.metrics.spans import Span
from tests.small import BASE, FRESH, PROMPTS, contents, small_task, workers_of
from tests.waiting import until

STEPS = 2
RANKS = ("generator-0", "learner")


@dataclass(eq=False)
class Answers:
    """Generators whose answers of the first run are given again in the second, as they would write them."""

    inner: ports.Generators
    known: dict[str, Completion] = field(default_factory=dict)
    written: int = 0

    @property
    def reissued(self) -> Reissued:
        """See the port."""
        return self.inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        async for one in self.inner.generate(requests, sampling, deadline_s=deadline_s):
            self.written += 1
            yield self.known.setdefault(one.request_id, one)


@dataclass(eq=False)
class Cast:
    """The actors as a run is given them."""

    actors: RunActors
    generators: GeneratorPool
    answers: Answers
    trainers: Trainers
    run: Run

    async def steps(self, prompts: PromptSet) -> None:
        """Two training steps from the base model."""
        await self.trainers.weights.publish(0)
        for number in range(STEPS):
            await run_step(Step(self.run, self.trainers, number, 0, lambda *_: ()), prompts.prompts[:PROMPTS])

    async def save(self, home: Path) -> None:
        """Weights and optimizer state into a new directory."""
        await asyncio.to_thread(home.mkdir)
        await self.trainers.learner.save(home)
        await self.trainers.learner.written()


async def cast_of(actors: RunActors, config: Config, prompts: PromptSet, known: dict[str, Completion]) -> Cast:
    generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
    actors.control()
    await actors.started()
    weights = actors.weights(learners, generators, prompts.prompts)
    writers, learner, published = actors.ports(generators, learners, weights)
    answers = Answers(writers, known)
    run = Run(config, Roles(answers, verifiers), TerminalProgress(), "tok", "base", "float32")
    return Cast(actors, generators, answers, Trainers(learner, published, OnPolicyRollouts(run), None), run)


def check_turns(spans: Sequence[Span]) -> None:
    """Never both at work; weights go from a publication into an engine that slept, and before any answer."""
    work = {"generate", "load weights", "start"}, {"score", "update", "publish", "save"}
    ours = [span for span in spans if span.actor == "generator-0" and span.what in work[0]]
    theirs = [span for span in spans if span.actor == "learner" and span.what in work[1]]
    assert ours
    assert theirs
    for one, other in itertools.product(ours, theirs):
        assert one.end <= other.begin or other.end <= one.begin, (one, other)
    names = {"sleep", "load weights", "generate", "score", "update", "publish"}
    happened = sorted((s for s in spans if s.actor in RANKS and s.what in names), key=lambda span: span.begin)
    told = [key for key, _ in itertools.groupby(f"{span.actor.split('-')[0]} {span.what}" for span in happened)]
    begin = ["learner sleep", "generator sleep", "learner publish", "learner sleep", "generator load weights"]
    step = ["generator generate", "generator sleep", "learner score", "learner update", *begin[2:]]
    assert told[: len(begin) + STEPS * len(step)] == begin + STEPS * step


def groups_held() -> int:
    """Placement groups that are not removed."""
    return sum(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values())


async def test_turns_on_shared_devices_end_with_the_weights_of_devices_apart_to_the_bit(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=colocated", "cluster.cpus=4"]
    overrides += ["learner.ranks=2", "generator.restarts=1", "update.lr=1e-3", "reward.overlong_buffer=47"]
    config = load_config([BASE], overrides)
    prompts = Subject(config).inputs().train
    assert prompts is not None
    known: dict[str, Completion] = {}
    async with run_actors(config) as actors:
        cast = await cast_of(actors, config, prompts, known)
        await cast.save(tmp_path / "start")
        await cast.steps(prompts)
        await cast.save(tmp_path / "apart")
        assert groups_held() == 2  # one of the generator, one of both ranks

    shared = load_config([BASE], [*overrides, "cluster.placement=colocated", "generator.tensor_parallel=2"])
    async with run_actors(shared) as actors:
        cast = await cast_of(actors, shared, prompts, known)
        await cast.steps(prompts)
        assert cast.answers.written == STEPS * PROMPTS * FRESH
        check_turns(actors.cluster.timeline.spans)
        await cast.save(tmp_path / "together")
        with pytest.raises(ConfigError, match="as many generators as"):
            await cast.generators.scale(2, 0)
        await one_worker_dies_asleep(cast, prompts)
        assert groups_held() == 1  # one for all, which the successor reuses
    start, expected = contents(tmp_path / "start"), contents(tmp_path / "apart")
    assert contents(tmp_path / "together") == expected != start


@pytest.mark.skipif(not torch.cuda.is_available(), reason="that a sleeping side frees its memory is seen on a GPU only")
async def test_turns_on_one_gpu_leave_each_side_the_memory_of_the_other(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=one-gpu", "update.lr=1e-3"]
    overrides += ["generator.gpus=1", "learner.gpus=1", "generator.memory_utilization=0.8", "reward.overlong_buffer=47"]
    config = load_config([BASE], [*overrides, "cluster.placement=colocated"])
    prompts = Subject(config).inputs().train
    assert prompts is not None
    async with run_actors(config) as actors:
        cast = await cast_of(actors, config, prompts, {})
        await cast.steps(prompts)
        awake = torch.cuda.mem_get_info()[0]
        await cast.save(tmp_path / "saved")
        free, whole = torch.cuda.mem_get_info()
        assert awake < 0.2 * whole < 0.9 * whole < free + 8 * 2**30
        check_turns(actors.cluster.timeline.spans)


async def one_worker_dies_asleep(cast: Cast, prompts: PromptSet) -> None:
    """In the learner's turn; the whole generator is started again when it is its turn, and writes."""
    (replica,) = cast.generators.replicas
    assert replica.state is GeneratorState.ASLEEP
    assert replica.actor.living is not None
    owner = psutil.Process(await replica.actor.living.ping.remote())
    parts = workers_of(owner)
    assert len(parts) == 2
    mapped = {Path(one.path) for part in parts for one in part.memory_maps() if "/dev/shm/" in one.path}
    shared = {path for path in mapped if path.name.startswith(("psm_", "vllm_dist_")) and path.exists()}
    assert shared
    os.kill(parts[1].pid, signal.SIGKILL)
    await until(lambda: replica.actor.living is None, "the loss of the generator")
    requests = [Request("again", prompts.prompts[0].id, prompts.prompts[0].tokens, 0, 7)]
    written = [one async for one in cast.answers.generate(requests, Sampling(max_tokens=8), deadline_s=300)]
    assert [(one.request_id, one.policy_version) for one in written] == [("again", STEPS)]
    assert replica.actor.restarts == 1
    _, left = await asyncio.to_thread(psutil.wait_procs, [owner, *parts], timeout=60)
    assert not left
    assert not [path for path in shared if path.exists()], "what dead workers shared in memory"


@ray.remote
class Probe:
    """What an actor sees of its GPUs: those that Ray gave it, or that it set itself, as generators do."""

    def __init__(self, devices: str = "") -> None:
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices

    def ping(self) -> int:
        """Answers."""
        return os.getpid()

    def devices(self) -> str:
        """As it is now."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A private cluster that believes in four GPUs."""
    monkeypatch.setattr(ray, "init", partial(ray.init, num_gpus=4))
    cluster = Cluster(ClusterConfig(cpus=4, place_deadline_s=60), tmp_path.name)
    cluster.connect()
    yield cluster
    cluster.close()


async def test_generators_see_the_gpus_of_their_ranks_and_placement_groups_are_refused_or_freed(
    four_gpus: Cluster,
) -> None:
    cluster = four_gpus
    role = GeneratorConfig(count=2, tensor_parallel=2, gpus=2, cpus=2)
    shared = Colocated(cluster, role, LearnerConfig(ranks=4, gpus=1, cpus=0.5), time_share=None)  # type: ignore[arg-type]
    ranks = await asyncio.gather(
        *(
            cluster.place(
                LearnerActor, f"learner-{rank}", LearnerConfig(gpus=1, cpus=0.5), rank, slot=shared.slot_of_rank(rank)
            )
            for rank in range(4)
        )
    )
    seen = [await rank.devices.remote() for rank in ranks]
    assert sorted(seen) == ["0", "1", "2", "3"]
    assert await shared.devices_of("generator-0") == f"{seen[0]},{seen[1]}"
    assert await shared.devices_of("generator-1") == f"{seen[2]},{seen[3]}"
    theirs = await shared.devices_of("generator-1")
    guest = await cluster.place(Probe, "generator-1", GUEST, theirs, slot=shared.slot_of("generator-1"))
    assert await guest.devices.remote() == theirs

    wanted = (
        r"extra cannot be placed: this machine has 4 CPU, 4 GPU, the run's actors ask for .* \(colocated 4 CPU, 4 GPU"
    )
    with pytest.raises(PlacementError, match=wanted):
        cluster.reserve("extra", [ActorConfig(cpus=0, gpus=1)])
    shared.close()
    assert groups_held() == 0

    pair = BundleSlot(cluster.reserve("generator-7", [ActorConfig(cpus=1, gpus=2)]))
    probe = await cluster.place(Probe, "generator-7", ActorConfig(cpus=1, gpus=2), slot=pair)
    assert len(set((await probe.devices.remote()).split(","))) == 2
    with pytest.raises(PlacementError, match=r"ask for 4 CPU, 5 GPU together \(generator-7 1 CPU, 2 GPU, learner 3"):
        cluster.reserve("learner", [ActorConfig(cpus=1, gpus=1)] * 3)
    idle = BundleSlot(cluster.reserve("generator-6", [ActorConfig(cpus=0)]))
    assert await (await cluster.place(Probe, "generator-6", ActorConfig(cpus=0), slot=idle)).ping.remote()
    cluster.forget("generator-6")
    cluster.forget("generator-7")

    # On a cluster that might grow an actor waits for its slot, and then the error names what the whole placement group lacks.
    home, cluster.home = cluster.home, None
    object.__setattr__(cluster.config, "place_deadline_s", 3)
    lacking = {
        r"generator-8 was not placed within 3 s: needs 1 CPU, 2 GPU rlep-role=x; no node has the labels rlep-role=x": [
            ActorConfig(cpus=1, gpus=2, label_selector={"rlep-role": "x"})
        ],
        r"generator-9 was not placed within 3 s: needs 0 CPU, 6 GPU; needs 6 GPU, the largest node has 4": [
            ActorConfig(cpus=0, gpus=6)
        ],
    }
    for number, (message, bundles) in enumerate(lacking.items(), start=8):
        name = f"generator-{number}"
        slot = BundleSlot(cluster.reserve(name, bundles))
        with pytest.raises(PlacementError, match=message):
            await cluster.place(Probe, name, bundles[0], slot=slot)
        cluster.forget(name)
    assert groups_held() == 0
    cluster.home = home
