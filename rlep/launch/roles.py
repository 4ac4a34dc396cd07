"""The composition root: from a config to running actors behind the driver's ports."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rlep.actors.cluster import Cluster, Report, unreported
from rlep.actors.colocation import Colocated
from rlep.actors.contact import remove_contact, write_contact
from rlep.actors.control import Control, Role
from rlep.actors.generators import GeneratorPool
from rlep.actors.learner_actor import Probes
from rlep.actors.learners import Learners
from rlep.actors.pool_actor import LIVE_ACTOR_NAME, PoolService
from rlep.actors.prometheus_gauges import remove_targets, write_targets
from rlep.actors.ray_watch import ended_by, watch_node
from rlep.actors.replicas import RoleStatus
from rlep.actors.run_progress import RunProgress
from rlep.actors.timeline import keep_trace, write_trace
from rlep.actors.verifiers import VerifierPool, check_nodes
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Inputs
from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.core.types import Prompt
from rlep.core.waiting import silence
from rlep.driver import ports
from rlep.driver.wings.colocated import TimeSharedGenerators, TimeSharedLearner, TimeSharedWeights, TimeSharing
from rlep.engines.sampler.setup import PROBES
from rlep.services.pool.values import FAILURES, LIVE, UNCAPPED, PoolOptions, PoolPlace


def probes_of(prompts: Sequence[Prompt]) -> Probes:
    """Return fixed sequences for the log-prob check: the first prompts' own text, one half given, the other scored."""
    chosen = [prompt.tokens for prompt in prompts if len(prompt.tokens) > 1][:PROBES]
    return [(tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]) for tokens in chosen]


class RunActors:
    """The actors of one command; entered once, closed in the reverse order whatever happens."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self._stack = AsyncExitStack()
        self._starting: list[asyncio.Task[None]] = []
        self._elastic: dict[Role, GeneratorPool | VerifierPool] = {}
        self._watched: list[Callable[[], RoleStatus]] = []
        self._sharing, self._shared = _shared(config, cluster)

    async def __aenter__(self) -> RunActors:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._stack.aclose()

    @property
    def roles(self) -> int:
        """Number of roles that were asked for."""
        return len(self._starting)

    async def started(self, advance: Callable[[int], None] | None = None) -> None:
        """Wait until all roles that were asked for are up, ``advance`` being told of each; the first failure ends the wait."""
        for started in asyncio.as_completed(self._starting):
            await started
            if advance is not None:
                advance(1)

    def generators(self, *, base_version: int | None = None) -> GeneratorPool:
        """Start vLLM engines; ``base_version`` serves the model directory's own weights under that version."""
        config, shared = self.config, self._shared
        if base_version is not None:  # weights that never change, and no learner
            config = config.with_values(rollout={"max_staleness": 0}, cluster={"placement": "split"})
            shared = None
        if shared is not None:
            self._stack.callback(shared.close)  # when all actors in it have ended
        model, lease_s = config.model.path.absolute(), config.generator.lease(config.rollout.max_tokens)
        role = GeneratorPool(self.cluster, config, model, lease_s=lease_s, shared=shared)
        self._sharing.join("generators", role)
        self._begin(role.close, role.start(base_version=base_version))
        self._elastic["generators"] = role
        return role

    def verifiers(self) -> VerifierPool:
        """Start the verifier pool."""
        role = VerifierPool(self.cluster, self.config.verifier)
        self._begin(role.close, role.start())
        self._elastic["verifiers"] = role
        return role

    def learners(self) -> Learners:
        """Start all learner ranks."""
        role = Learners(self.cluster, self.config, self.config.model.path.absolute(), shared=self._shared)
        self._sharing.join("learner", role)
        self._begin(role.close, role.start())
        self._watched.append(role.status)
        return role

    def pool(self, inputs: Inputs, *, read_only: bool) -> PoolService:
        """Open the experience pool."""
        options = PoolOptions(minimum=self.config.replay.minimum, read_only=read_only)
        return self._pool("pool", pool_place(self.config), inputs, options, cap=self.config.collection.cap)

    def live(self, inputs: Inputs) -> PoolService:
        """Open the pool of the run's own responses, for ``replay.source``. One driver at a time has it."""
        holder = f"{secrets.token_hex(8)} the run in {self.config.run.directory.absolute()} on {platform.node()}"
        options = PoolOptions(minimum=1, precision="float32", holder=holder)
        place = replace(pool_place(self.config), name=self.config.run.name + LIVE)
        return self._pool(LIVE_ACTOR_NAME, place, inputs, options, cap=UNCAPPED)

    def failures(self, inputs: Inputs, *, read_only: bool) -> PoolService:
        """Open the pool of wrong responses beside it, for ``replay.failed``."""
        options = PoolOptions(minimum=1, read_only=read_only, holds="wrong")
        return self._pool(
            "failures", pool_place(self.config, FAILURES), inputs, options, cap=self.config.collection.failed
        )

    def _pool(self, actor: str, place: PoolPlace, inputs: Inputs, options: PoolOptions, *, cap: int) -> PoolService:
        config = self.config
        options = replace(
            options,
            cap=None if options.read_only else cap,
            writer=config.run.name,
            deadline=config.pool.deadline_s,
            vocabulary=inputs.vocabulary,
        )
        role = PoolService(self.cluster, place, inputs.tokenizer.digest, options, actor)
        self._begin(role.close, role.start())
        self._watched.append(role.status)
        return role

    def control(self, progress: Callable[[], RunProgress] = RunProgress) -> Control:
        """Listen for commands from other processes, which find the run by a file in its directory; asked for after all roles."""
        role = Control(self.cluster, self._elastic, self._watched, progress)
        directory = self.config.run.directory

        async def start() -> None:
            await role.start()
            write_contact(directory, self.cluster.contact)
            if self.cluster.home is not None and "prometheus" in self.config.tracking.sinks:
                write_targets(directory)

        self._begin(role.close, start())
        self._stack.callback(remove_contact, directory)
        self._stack.callback(remove_targets, directory)
        trace, timeline = directory / "timeline.json", self.cluster.timeline
        self._stack.callback(lambda: write_trace(trace, timeline.spans))
        self._stack.callback(asyncio.ensure_future(keep_trace(trace, timeline)).cancel)
        return role

    def weights(self, learners: Learners, generators: GeneratorPool, prompts: Sequence[Prompt]) -> WeightPublisher:
        """Return the publisher of weights from the learner to the generators."""
        return WeightPublisher(
            learners,
            generators,
            probes_of(prompts),
            config=self.config.generator,
            deadline_s=self.config.learner.deadline_s,
        )

    def ports(
        self, generators: GeneratorPool, learners: Learners, weights: WeightPublisher
    ) -> tuple[ports.Generators, ports.Learner, ports.Weights]:
        """Return these as a training run is given them: with time-sharing where they share devices."""
        if self._shared is None:
            return generators, learners, weights
        sharing = self._sharing
        return (
            TimeSharedGenerators(generators, sharing),
            TimeSharedLearner(learners, sharing),
            TimeSharedWeights(weights.offer, weights.take, sharing),
        )

    def _begin(self, close: Callable[[], Awaitable[None]], starting: Coroutine[object, object, None]) -> None:
        self._stack.push_async_callback(close)
        self._starting.append(asyncio.create_task(starting))


def _shared(config: Config, cluster: Cluster) -> tuple[TimeSharing, Colocated | None]:
    generator, learner = config.generator, config.learner
    # The longest work of a side: a rollout during which a generator restarts, or one update.
    sharing = TimeSharing(config.rollout.deadline_s + generator.start_deadline_s + learner.deadline_s)
    if config.cluster.placement == "split":
        return sharing, None
    return sharing, Colocated(cluster, generator, learner, lambda: sharing.of("generators", wake=False))


@asynccontextmanager
async def run_actors(config: Config, report: Report = unreported) -> AsyncIterator[RunActors]:
    """Connect to a cluster with nothing on it yet; its logs are kept in the run directory when the block fails."""
    cluster = Cluster(config.cluster, config.run.name, report)
    connecting = silence(asyncio.ensure_future(asyncio.to_thread(cluster.connect)))  # nobody may be left to await it
    logs: Path | None = config.run.directory / "logs"
    try:
        await asyncio.shield(connecting)
        await check_nodes(cluster, config.verifier)
        with watch_node(config.cluster.head_deadline_s):
            async with RunActors(config, cluster) as entered, ended_by(cluster.watch()):
                yield entered
        logs = None
    finally:
        await asyncio.wait({connecting})  # a thread cannot be stopped, and what it has begun is to be ended
        await asyncio.to_thread(cluster.close, logs)
