"""The composition root: from a config to running actors behind the driver's ports."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlep.actors.cluster import Cluster, Report, unreported
from rlep.actors.cluster_address import joined_address
from rlep.actors.colocation import Colocated
from rlep.actors.contact import remove_contact, write_contact
from rlep.actors.control import Control
from rlep.actors.environments import EnvironmentPool
from rlep.actors.generators import GeneratorPool
from rlep.actors.learner_actor import Probes
from rlep.actors.learners import Learners
from rlep.actors.node_checks import check_nodes, trials_of
from rlep.actors.pool_actor import PoolHost
from rlep.actors.prometheus_gauges import remove_targets, write_targets
from rlep.actors.ray_watch import ended_by, watch_node
from rlep.actors.replicas import RoleStatus
from rlep.actors.run_progress import ElasticRole, RunProgress
from rlep.actors.timeline import keep_trace, write_trace
from rlep.actors.verifiers import VerifierPool
from rlep.actors.weight_sync import WeightPublisher
from rlep.actors.worker_role import WorkerRole
from rlep.check.inputs import Inputs
from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.core.progress import Advance
from rlep.core.types import ALL, Prompt
from rlep.core.waiting import in_daemon_thread, silence
from rlep.driver import ports
from rlep.driver.wings.colocated import TimeSharedGenerators, TimeSharedLearner, TimeSharedWeights, TimeSharing
from rlep.engines.sampler.setup import PROBES
from rlep.hub.resolve import model_directory
from rlep.services.pool.rpc.async_client import AsyncPoolClient
from rlep.services.pool.values import FAILURES, LIVE

IDLE_EPISODE_S = 86_400.0
"""An episode that nobody has acted in for as long is forgotten, at least."""
CANDIDATES = 64
"""Prompts that the log-prob check takes the longest of."""


def probes_of(prompts: Sequence[Prompt]) -> Probes:
    """Return fixed sequences for the log-prob check: the longest of the first prompts, one half given, the other scored.

    The check takes a mean: of few tokens, two improbable ones that bfloat16 rounds otherwise would decide it.
    """
    first = sorted((prompt.tokens for prompt in prompts[:CANDIDATES]), key=len, reverse=True)
    chosen = [tokens for tokens in first[:PROBES] if len(tokens) > 1]
    return [(tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]) for tokens in chosen]


class RunActors:
    """The actors of one command; entered once, closed in the reverse order whatever happens."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self._stack = AsyncExitStack()
        self._starting: list[asyncio.Task[None]] = []
        self._elastic: dict[ElasticRole, GeneratorPool | WorkerRole[Any]] = {}
        self._watched: list[Callable[[], RoleStatus]] = []
        self._pool_host: PoolHost | None = None
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

    async def started(self, advance: Advance = lambda _: None) -> None:
        """Wait until all roles that were asked for are up, ``advance`` being told of each; the first failure ends the wait."""
        for started in asyncio.as_completed(self._starting):
            await started
            advance(1)

    def generators(self, *, base_version: int | None = None) -> GeneratorPool:
        """Start vLLM engines; ``base_version`` serves the model directory's own weights under that version."""
        config, shared = self.config, self._shared
        if base_version is not None:  # weights that never change, and no learner
            config = config.with_values(rollout={"max_staleness": 0}, cluster={"placement": "split"})
            shared = None
        if shared is not None:
            self._stack.callback(shared.close)  # when all actors in it have ended
        model, lease_s = model_directory(config.model).absolute(), config.generator.lease(config.rollout.max_tokens)
        role = GeneratorPool(self.cluster, config, model, lease_s=lease_s, shared=shared)
        self._sharing.join("generators", sleep=role.sleep, wake=role.wake)
        self._begin(role.close, role.start(base_version=base_version))
        self._elastic["generators"] = role
        return role

    def verifiers(self) -> VerifierPool:
        """Start the verifier pool."""
        role = VerifierPool(self.cluster, self.config.verifier)
        self._begin(role.close, role.start())
        self._elastic["verifiers"] = role
        return role

    def environments(self) -> EnvironmentPool | None:
        """Start the environments of episodes; None where there are none."""
        if not self.config.environment.factory:
            return None
        # An episode may wait for its generator as long as its rollout lasts, which in a large evaluation is longer than a step's.
        role = EnvironmentPool(
            self.cluster, self.config.environment, idle_s=max(IDLE_EPISODE_S, self.config.rollout.deadline_s)
        )
        self._begin(role.close, role.start())
        self._elastic["environments"] = role
        return role

    def learners(self) -> Learners:
        """Start all learner ranks."""
        models = [model_directory(model).absolute() for model in self.config.models]
        role = Learners(self.cluster, self.config, models, shared=self._shared)
        self._sharing.join("learner", sleep=role.sleep, wake=role.wake)
        self._begin(role.close, role.start())
        self._watched.append(role.status)
        return role

    def pool(self, inputs: Inputs, *, read_only: bool) -> AsyncPoolClient:
        """Open the experience pool."""
        name, cap = self.config.pool.name, self.config.collection.cap
        options = {"minimum": self.config.replay.offline_minimum} if read_only else None
        return self._pool(name, inputs, options, cap=None if read_only else cap, read_only=read_only)

    def live(self, inputs: Inputs) -> AsyncPoolClient:
        """Open the pool of the run's own responses, for ``replay.source``. One driver at a time has it."""
        holder = f"{secrets.token_hex(8)} the run in {self.config.run.directory.absolute()} on {platform.node()}"
        options = {"minimum": 1, "precision": "float32"}
        return self._pool(self.config.run.name + LIVE, inputs, options, cap=ALL, holder=holder)

    def failures(self, inputs: Inputs, *, read_only: bool) -> AsyncPoolClient:
        """Open the pool of wrong responses beside it, for ``replay.failed``."""
        name, cap = self.config.pool.name + FAILURES, self.config.collection.failed
        return self._pool(name, inputs, {"minimum": 1}, cap=None if read_only else cap, read_only=read_only)

    def _pool(
        self, name: str, inputs: Inputs, options: Mapping[str, Any] | None = None, **opening: Any
    ) -> AsyncPoolClient:
        """Return a client, opened once the run's server is up."""
        config = self.config
        if self._pool_host is None:
            self._pool_host = PoolHost(self.cluster, replace(pool_place(config), name=name), config.pool.deadline_s)
            self._begin(self._pool_host.close, self._pool_host.start())
            self._watched.append(self._pool_host.status)
        host = self._pool_host
        known = {"minimum": config.replay.minimum, "writer": config.run.name, "vocabulary": inputs.vocabulary}
        client = host.client(name, **known | dict(options or {}))

        async def start() -> None:
            await host.started()
            await client.open(tokenizer_digest=inputs.tokenizer.digest, **opening)

        self._begin(client.close, start())
        return client

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
        self, generators: ports.Generators, learners: Learners, weights: WeightPublisher
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
    joins = joined_address(config.cluster.address) is not None
    # A thread cannot be stopped. What it starts is ended below; a join starts nothing, and nobody waits for its thread.
    connected = in_daemon_thread(cluster.connect) if joins else asyncio.to_thread(cluster.connect)
    connecting = silence(asyncio.ensure_future(connected))  # nobody may be left to await it
    logs: Path | None = config.run.directory / "logs"
    try:
        await asyncio.shield(connecting)
        for trial in trials_of(config):
            await check_nodes(cluster, trial)
        with watch_node(config.cluster.head_deadline_s):
            async with RunActors(config, cluster) as entered, ended_by(cluster.watch()):
                yield entered
        logs = None
    finally:
        if not joins:
            await asyncio.wait({connecting})
        if connecting.done():
            await asyncio.to_thread(cluster.close, logs)
