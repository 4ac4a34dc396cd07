"""CPUs and GPUs that a run's actors ask for, and the keys that help where there are too few CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlep.config.roles import ActorConfig
from rlep.config.schema import Config


def wanted_cpus(config: Config, *, learns: bool = True) -> float:
    """CPUs that all actors reserve together; without ``learns`` there is no learner, as in ``collect`` and ``evaluate``."""
    return _wanted(config, learns, lambda role: role.cpus)


def wanted_gpus(config: Config, *, learns: bool = True) -> float:
    """GPUs that they reserve together, likewise."""
    return _wanted(config, learns, lambda role: role.gpus)


def _wanted(config: Config, learns: bool, each: Callable[[ActorConfig], float]) -> float:
    """All of what ``each`` actor of a role asks for; what generators and learners share is counted once."""
    asked = {name: count * each(role) for name, (_, count, role) in roles_of(config, learns=learns).items()}
    shared = learns and config.cluster.placement == "colocated"
    return sum(asked.values()) - (min(asked["generator"], asked["learner"]) if shared else 0.0)


def cpu_shortage(config: Config, have: int, *, learns: bool = True) -> str:
    """Name the actors that ask for more than ``have`` CPUs, and each override that helps alone; empty where all fit."""
    wanted = wanted_cpus(config, learns=learns)
    if wanted <= have:
        return ""
    roles = roles_of(config, learns=learns)
    asking = ", ".join(f"{name} {count} x {role.cpus:g}" for name, (_, count, role) in roles.items() if role.cpus)
    remedies = []
    if config.cluster.placement == "split":
        for name, (key, count, role) in roles.items():
            left = have - (wanted - count * role.cpus)
            if 1 <= left / (role.cpus or math.inf) < count:
                remedies.append(f"{name}.{key}={int(left / role.cpus)}")
            if 0 <= left < count * role.cpus and (share := math.floor(100 * left / count) / 100) >= _least(name):
                remedies.append(f"{name}.cpus={share:g}")
    remedies.append(f"cluster.cpus={math.ceil(wanted)} (the actors then share the cores)")
    options = ", ".join(f"--set {remedy}" for remedy in remedies)
    there = "is 1 CPU" if have == 1 else f"are {have} CPUs"
    return f"the actors ask for {wanted:g} CPUs ({asking}), there {there}; one of these helps: {options}"


def _least(role: str) -> float:
    """Verifiers and environments may reserve nothing; engines with less than half a core would only wait."""
    return 0.0 if role in ("verifier", "environment") else 0.5


def roles_of(config: Config, *, learns: bool = True) -> dict[str, tuple[str, int, ActorConfig]]:
    """Section → its key of how many actors, their number, and what each asks for."""
    roles: dict[str, tuple[str, int, ActorConfig]] = {
        "generator": ("count", config.generator.count, config.generator),
        "verifier": ("count", config.verifier.count, config.verifier),
    }
    if config.environment.factory:
        roles["environment"] = ("count", config.environment.count, config.environment)
    return roles | ({"learner": ("ranks", config.learner.ranks, config.learner)} if learns else {})
