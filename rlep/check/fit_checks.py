"""Checks of whether the actors fit: CPUs of this machine, memory of its GPUs or its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rlep.actors.cluster_address import joined_address
from rlep.actors.ray_private import cores
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.inputs import Subject
from rlep.check.machine import gpu_memory
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.core.plural import sized
from rlep.driver.model_shape import read_shape
from rlep.driver.plan_cpus import cpu_shortage, wanted_cpus
from rlep.driver.plan_fit import lowering_settings, plan_fit
from rlep.driver.plan_learner import plan_learner


def cpus(subject: Subject) -> Iterator[Finding]:
    """Check that a private cluster holds all actors."""
    config = subject.config
    if joined_address(config.cluster.address) is not None:
        raise CheckSkipped("a cluster is joined, which may be larger than this machine")
    if missing := missing_cpus(config, learns=subject.learns):
        raise ConfigError(missing)
    wanted = wanted_cpus(config, learns=subject.learns)
    yield Finding("CPUs", "ok", f"{config.cluster.cpus or cores()} logical CPUs, the actors ask for {wanted:g}")


def memory(subject: Subject) -> Iterator[Finding]:
    """Hold the plan against the smallest GPU that is here, or against this machine's memory."""
    config = subject.config
    if not subject.learns:
        return
    shape, gpus = subject.shape, gpu_memory()
    on_gpus = bool(config.learner.gpus or config.generator.gpus)
    if shape is None:
        raise CheckSkipped("the model's shape is not of a family that can be planned")
    if on_gpus and not gpus:
        raise CheckSkipped("no GPU is here; `rlep plan --gpu-memory GIB` tells for GPUs of that size")
    found = plan_fit(config, shape, gpu_bytes=min(gpus, default=0), host_bytes=memory_here(config))
    reason, _, remedy = found.reason.partition("; ")
    if found.fits is None:
        raise CheckSkipped("a cluster is joined, whose memory is not known here")
    yield Finding("memory for the plan", "ok" if found.fits else "wrong", reason, remedy)


def missing_cpus(config: Config, *, learns: bool = True) -> str:
    """Why a private cluster cannot hold all actors, with the overrides that help; or an empty string.

    A cluster that is joined may be larger than this machine, and may grow: of it nothing is known here.
    """
    return (
        ""
        if joined_address(config.cluster.address)
        else cpu_shortage(config, config.cluster.cpus or cores(), learns=learns)
    )


def memory_here(config: Config) -> int | None:
    """Bytes of this machine's memory; None where a cluster is joined, of which nothing is known here."""
    return None if joined_address(config.cluster.address) else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_advice(config: Config) -> str:
    """Return the plan of a learner rank's memory, and the settings that lower it."""
    rank = plan_learner(config, read_shape(config.model.path))
    gathered = rank.copy_bytes + rank.reference_bytes
    return (
        f"Planned are {sized(rank.peak_bytes)} for a rank: weights and Adam {sized(rank.state_bytes)}, gradients "
        f"{sized(rank.gradient_bytes)}, gathered weights {sized(gathered)}, activations {sized(rank.activation_bytes)}, logits "
        f"and buffers {sized(rank.work_bytes)}. These lower it: {', '.join(lowering_settings(config))}. "
        "`rlep plan --gpu-memory GIB` says which of them suffice"
    )
