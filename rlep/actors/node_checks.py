"""Roles with code of the user's own, tried on each node of a joined cluster before any actor starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlep.actors.cluster import SENT_AGAIN, Cluster, call
from rlep.actors.placement import may_hold
from rlep.config.environment import EnvironmentConfig
from rlep.config.roles import FUNCTIONS, VerifierConfig, WorkerRoleConfig
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, EnvironmentFault
from rlep.core.plural import counted
from rlep.services.environment.local import local_environments
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.user_function import profile_version
from rlep.services.worker.source import source_digest


@ray.remote(num_cpus=0, max_retries=SENT_AGAIN)
def try_verifier(config: VerifierConfig) -> tuple[str, str]:
    """Return the version of the verifier on this node, and why it cannot serve; one of them is empty."""
    try:
        with configured_verifier(config) as verifier:
            verifier.check()
            return verifier.version, ""
    except ConfigError as error:
        return "", str(error)


@ray.remote(num_cpus=0, max_retries=SENT_AGAIN)
def try_environment(config: EnvironmentConfig) -> tuple[str, str]:
    """Return the version of the environment on this node, and why it cannot serve; one of them is empty."""

    async def version() -> str:
        async with local_environments(config.model_copy(update={"workers": 1})) as environments:
            return environments.digest

    try:
        return asyncio.run(version()), ""
    except (ConfigError, EnvironmentFault) as error:
        return "", str(error).removeprefix(f"environment.factory = {config.factory}: ")


@dataclass(frozen=True, slots=True)
class NodeTrial:
    """One role's trial."""

    role: str
    """Its section."""
    key: str
    """The key in it that names what is tried."""
    config: WorkerRoleConfig
    trial: Any
    """One of the functions above."""
    version: Callable[[], str]
    """Returns what the version of a node begins with."""
    file: str
    """The file that this is the version of, as the error calls it."""

    @property
    def named(self) -> str:
        """Value of the key: the name of what is tried."""
        return str(getattr(self.config, self.key))


def trials_of(config: Config) -> list[NodeTrial]:
    """Return the trials of the roles that a run has."""
    profile, factory = config.verifier.profile, config.environment.factory
    version = partial(profile_version, profile) if profile.startswith(FUNCTIONS) else str
    trials = [NodeTrial("verifier", "profile", config.verifier, try_verifier, version, "function's file")]
    if factory:
        digest = partial(source_digest, factory, "environment.factory")
        trials.append(NodeTrial("environment", "factory", config.environment, try_environment, digest, "class's file"))
    return trials


async def check_nodes(cluster: Cluster, trial: NodeTrial) -> str:
    """Try a role on each node of a joined cluster that may have it; return how many nodes they are, as a sentence.

    Raises ``ConfigError`` naming the first node where it cannot serve, as where the user's code cannot be imported, or
    where that code is another than here.
    """
    if cluster.home is not None:
        return ""
    nodes = [node for node in ray.nodes() if node["Alive"] and may_hold(node, trial.config)]
    faults = await asyncio.gather(*(_fault_on(node, trial) for node in nodes))
    for node, fault in zip(nodes, faults, strict=True):
        if fault:
            raise ConfigError(
                f"{trial.role}.{trial.key} = {trial.named} on node {node['NodeManagerAddress']}: {fault}. Install it on every "
                f"node that may have {_one(trial.role)}, submit the run with `rlep submit`, or choose nodes by "
                f"{trial.role}.label_selector"
            )
    return f"{trial.named} serves on {counted(len(nodes), 'node')}"


async def _fault_on(node: Mapping[str, Any], trial: NodeTrial) -> str:
    where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    reference = trial.trial.options(scheduling_strategy=where).remote(trial.config)
    what = f"trying {_one(trial.role)} on node {node['NodeManagerAddress']}"
    try:
        version, fault = await call(reference, what, trial.config.start_deadline_s)
    except RayError as error:  # of a node without rlep, or whose memory is full
        return str(error).strip().rpartition("\n")[2]
    if not fault and not version.startswith(trial.version()):
        return f"the {trial.file} there is not the one here"
    return str(fault)


def _one(role: str) -> str:
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"
