"""Limits of a worker process: CPU time, memory, files, and unless asked for no network. Linux; each limit is inherited."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rlep.services.worker import confinement

_log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_FILES_OF_A_NETWORK = 1024


class Unconfined(RuntimeError):
    """A layer that this machine offers cannot be put on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one job, and of the process that runs it."""

    cpu_seconds: float = 1.0
    """CPU time of one job, in seconds."""
    first_seconds: float = 0.0
    """CPU time that the first job of a process has instead, where that is more: it may build what later ones use."""
    wall_seconds: float = 30.0
    """Backstop for a job that waits instead of computing, in seconds."""
    memory_mb: int = 768
    """Address space of the process beyond what its imports took, in MiB."""
    recycle_mb: int = 384
    """A process that has grown by more than this after a batch is replaced, in MiB of resident memory."""
    recycle_jobs: int = 2000
    """A process is replaced after this many jobs."""
    files: int = 64
    """Open files of the process; with the network 1024."""
    network: bool = False
    """Sockets, threads and more files are allowed."""
    at_once: int = 1
    """With the network: jobs in work at once."""
    deadline_s: float = 300.0
    """With the network: longest wait for one verdict, in seconds."""
    variables: Sequence[str] = ()
    """Names of variables that the process gets beside those that every worker has."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit now if ``parent`` is gone already."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def confine(limits: Limits) -> None:
    """Apply the limits that hold for a process's whole life; there is no way back. Raises Unconfined."""
    memory = int(memory_mb().address_space + limits.memory_mb) << 20
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES_OF_A_NETWORK if limits.network else limits.files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    try:
        confinement.confine("networked worker" if limits.network else "worker")
    except OSError as error:
        raise Unconfined(f"its process cannot be confined: {error}") from error


@cache
def warn_of_missing_layers() -> None:
    """Log, once, which of the layers around workers this machine lacks."""
    if missing := confinement.missing_layers():
        _log.warning(
            "worker processes are confined less here, without %s: the text of a policy that a function or environment runs may "
            "reach files and processes of this user",
            " and ".join(missing),
        )


class MemoryUse(NamedTuple):
    """Memory of this process, in MiB."""

    address_space: float
    resident: float


def memory_mb() -> MemoryUse:
    """Measure this process."""
    with open("/proc/self/statm") as statm:
        pages = [int(field) for field in statm.read().split()[:2]]
    return MemoryUse(*(count * os.sysconf("SC_PAGE_SIZE") / 2**20 for count in pages))


def start_clock(cpu_seconds: float) -> None:
    """Have the kernel kill this process once it has used ``cpu_seconds`` more of CPU time, whatever it is doing then."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    used = resource.getrusage(resource.RUSAGE_SELF)
    last_resort = math.ceil(used.ru_utime + used.ru_stime + cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (last_resort, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def stop_clock() -> None:
    """The job is done."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
