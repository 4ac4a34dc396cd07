"""Checks of whether the run fits: CPUs of this machine, memory of its GPUs and its own, shared memory, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from rlep.actors.cluster_address import joined_address
from rlep.actors.ray_private import OBJECT_STORE_BYTES, cores
from rlep.check.finding import CheckSkipped, Finding, Level
from rlep.check.inputs import Look, Subject, shape_of
from rlep.check.machine import gpu_memory
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.core.paths import SHARED_MEMORY
from rlep.core.plural import counted, sized
from rlep.plan.devices import cpu_shortage, wanted_cpus
from rlep.plan.fit import lowering_settings, plan_fit
from rlep.plan.host import HostPlan, plan_host
from rlep.plan.learner import plan_learner

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
LEAST_DISK_BYTES = 2 * 2**30
"""For logs, rollout files and the pool."""


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


def host_memory(subject: Subject) -> Iterator[Finding]:
    """Hold what a run on GPUs needs of this machine's memory against it; the plan of the learner has that of actors on CPUs."""
    config = subject.config
    total = memory_here(config)
    if total is None or not (config.generator.gpus or (subject.learns and config.learner.gpus)):
        return
    plan = _planned(subject)
    wanted, free = plan.memory_bytes, psutil.virtual_memory().available
    detail = (
        f"{sized(wanted)} while a checkpoint is written: ranks keep {sized(plan.kept_bytes)}, its copies "
        f"{sized(plan.saved_bytes)}, published weights {sized(plan.published_bytes)}, processes {sized(plan.process_bytes)}"
    )
    remedy = "take fewer generators and ranks, learner.lora_rank or, for ranks that sleep, cluster.placement = split"
    if wanted > total:
        raise ConfigError(f"this machine has {sized(total)} of memory, the run needs {detail}; {remedy}")
    good = wanted <= free
    yield Finding("host memory", "ok" if good else "wrong", f"{sized(free)} free, {detail}", "" if good else remedy)


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Check that two versions of the weights fit there, beside Ray's object store."""
    if not subject.learns or memory_here(subject.config) is None:
        return
    if not os.access(SHARED_MEMORY, os.W_OK):
        detail = "not there or not writable: weights travel through the temporary directory, slower"
        yield Finding("shared memory", "ok", f"{SHARED_MEMORY} is {detail}")
        return
    usage, weights = shutil.disk_usage(SHARED_MEMORY), _planned(subject).published_bytes
    wanted = OBJECT_STORE_BYTES + weights
    remedy = f"in a container: --shm-size={-(-wanted // 2**30)}g"
    detail = f"{sized(wanted)} for two versions of the weights and Ray's object store"
    if weights > usage.total:
        raise ConfigError(
            f"{SHARED_MEMORY} has {sized(usage.total)}, two versions of the weights take {sized(weights)}; {remedy}"
        )
    good = usage.free >= wanted
    level: Level = "ok" if good else "wrong"
    yield Finding("shared memory", level, f"{sized(usage.free)} free, {detail}", "" if good else remedy)


def disk(subject: Subject) -> Iterator[Finding]:
    """Check that the checkpoints that the run keeps fit on its disk, those that it has already counted."""
    config = subject.config
    directory = config.run.directory.absolute()
    place = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(place).free
    detail = f"{sized(free)} free at {place}"
    if subject.learns and subject.shape is not None:
        plan = _planned(subject)
        own = _bytes_below(directory / "checkpoints")
        wanted = f"{counted(plan.checkpoints, 'checkpoint')} of {sized(plan.checkpoint_bytes)}"
        if free + own < plan.disk_bytes:
            raise ConfigError(
                f"{detail}, the run has up to {wanted} there at once: make room, set run.directory to another disk, or lower "
                "checkpoint.keep"
            )
        detail += f", {wanted} at once"
    good = free >= LEAST_DISK_BYTES
    yield Finding("disk", "ok" if good else "wrong", detail, "" if good else "free some space")


def _bytes_below(directory: Path) -> int:
    """Bytes of the files below a directory; of a run that goes on some may vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(place) / name).stat().st_size
    return total


def _planned(subject: Subject) -> HostPlan:
    if subject.shape is None:
        raise CheckSkipped("the model's shape is not of a family that can be planned")
    return plan_host(subject.config, subject.shape, learns=subject.learns)


FIT: tuple[Look, ...] = (cpus, memory, host_memory, shared_memory, disk)


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
    """Bytes of this machine's memory, or of this container's; None where a cluster is joined, of which nothing is known here."""
    if joined_address(config.cluster.address):
        return None
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no control groups of version 2, or "max"
        return whole


def memory_advice(config: Config) -> str:
    """Return the plan of a learner rank's memory, and the settings that lower it."""
    rank = plan_learner(config, shape_of(config))
    gathered = rank.copy_bytes + rank.reference_bytes
    return (
        f"Planned are {sized(rank.peak_bytes)} for a rank: weights and Adam {sized(rank.state_bytes)}, gradients "
        f"{sized(rank.gradient_bytes)}, gathered weights {sized(gathered)}, activations {sized(rank.activation_bytes)}, logits "
        f"and buffers {sized(rank.work_bytes)}. These lower it: {', '.join(lowering_settings(config))}. "
        "`rlep plan --gpu-memory GIB` says which of them suffice"
    )
