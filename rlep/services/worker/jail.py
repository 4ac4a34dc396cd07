"""Limits of a worker process: CPU time, memory, files, and unless asked for no network. Linux; each limit is inherited.

Network, new processes and signals to others are refused by a seccomp filter where the kernel and the machine type
allow one (x86-64 and AArch64); elsewhere the resource limits stand alone.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import signal
import struct
from dataclasses import dataclass
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

# BPF instructions (linux/bpf_common.h) and seccomp return values (linux/seccomp.h)
_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_SET = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | 1  # errno EPERM
_UNKNOWN = 0x00050000 | 38  # errno ENOSYS: the C library then starts its thread by clone
_CLONE_THREAD = 0x00010000

_REFUSED_CALLS = {
    # socket, socketpair, clone, fork, vfork, execve, kill, ptrace, rt_sigqueueinfo, tkill, rt_tgsigqueueinfo, execveat,
    # pidfd_send_signal, io_uring_setup, clone3; tgkill stays, as abort() needs it
    "x86_64": (0xC000003E, (41, 53, 56, 57, 58, 59, 62, 101, 129, 200, 297, 322, 424, 425, 435)),
    # socket, socketpair, clone, execve, kill, ptrace, rt_sigqueueinfo, tkill, rt_tgsigqueueinfo, execveat,
    # pidfd_send_signal, io_uring_setup, clone3
    "aarch64": (0xC00000B7, (198, 199, 220, 221, 129, 117, 138, 130, 240, 281, 424, 425, 435)),
}
_FILES_OF_A_NETWORK = 1024
_CALLS_OF_A_NETWORK = {
    # clone and clone3; socket, socketpair
    "x86_64": (56, 435, 41, 53),
    "aarch64": (220, 435, 198, 199),
}
"""Allowed to a process that uses the network; of clones only those that are threads of its own."""


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


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit now if ``parent`` is gone already."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def confine(limits: Limits) -> None:
    """Apply the limits that hold for a process's whole life; there is no way back."""
    memory = int(memory_mb().address_space + limits.memory_mb) << 20
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES_OF_A_NETWORK if limits.network else limits.files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    _refuse_calls(network=limits.network)


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


def _refuse_calls(*, network: bool) -> None:
    """Install the seccomp filter, where this machine has one to offer."""
    architecture, calls = _REFUSED_CALLS.get(platform.machine(), (0, ()))
    if not calls:
        return
    threads: list[tuple[int, int, int, int]] = []
    if network:
        allowed = _CALLS_OF_A_NETWORK[platform.machine()]
        calls = tuple(call for call in calls if call not in allowed)
        clone, clone3 = allowed[:2]
        threads = [
            (_JUMP_EQUAL, 0, 1, clone3),  # its flags are in memory, where no filter can read them
            (_RETURN, 0, 0, _UNKNOWN),
            (_JUMP_EQUAL, 0, 4, clone),
            (_LOAD_WORD, 0, 0, 16),
            (_JUMP_SET, 1, 0, _CLONE_THREAD),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program = [
        (_LOAD_WORD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD_WORD, 0, 0, 0),
        *threads,
    ]
    for index, call in enumerate(calls):
        program.append((_JUMP_EQUAL, len(calls) - index, 0, call))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = _libc()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
