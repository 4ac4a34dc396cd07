"""Attempts of a text that a worker runs to reach beyond its process; imported by worker processes.

``REACHING`` is for every kind of worker. Each attempt is given a process of the same user and a file, and raises OSError where it
is refused.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {
        "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "ptrace": 101, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "setns": 308, "keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "memfd_create": 319, "execveat": 322, "unshare": 272, "mount": 165, "ioprio_set": 251, "shmget": 29,
        "mq_open": 240, "open_by_handle_at": 304, "setuid": 105,
    },
    "aarch64": {
        "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "ptrace": 117, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "setns": 268, "keyctl": 219, "add_key": 217, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "memfd_create": 279, "execveat": 281, "unshare": 97, "mount": 40, "ioprio_set": 30, "shmget": 194,
        "mq_open": 180, "open_by_handle_at": 265, "setuid": 146,
    },
}[os.uname().machine]  # fmt: skip
NUMBERS |= {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "fchmodat2": 452,
}
NUMBERS |= {"process_mrelease": 448, "pidfd_open": 434, "x32 kill": 0x40000000 | 62}


def call(name: str, *given: int | bytes) -> int:
    """Make a system call by number. Raises OSError."""
    found = LIBC.syscall(NUMBERS[name], *(ctypes.c_long(one) if isinstance(one, int) else one for one in given))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def _owned(command: int, given: int | bytes) -> None:
    """Have the kernel signal the owner of a pipe."""
    read, write = os.pipe()
    fcntl.fcntl(read, command, given)
    fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
    os.write(write, b"x")


def _owned_by_ioctl(victim: int) -> None:
    read, _ = os.pipe()
    fcntl.ioctl(read, 0x8901, struct.pack("i", victim))


def _memory_written(victim: int) -> None:
    memory = os.open(f"/proc/{victim}/mem", os.O_RDWR)
    os.close(memory)


def _vectors() -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    local = ctypes.create_string_buffer(8)
    return local, ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(local), 8))


def _vm(name: str, victim: int) -> int:
    _, vector = _vectors()
    return call(name, victim, ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0)


def _opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags, 0o600))


REACHING: dict[str, Callable[[int, str], object]] = {
    "kill": lambda victim, _: os.kill(victim, signal.SIGKILL),
    "kill all": lambda _, __: os.kill(-1, signal.SIGTERM),
    "kill the group": lambda _, __: os.killpg(0, signal.SIGKILL),
    "tkill": lambda victim, _: call("tkill", victim, signal.SIGKILL),
    "tgkill": lambda victim, _: call("tgkill", victim, victim, signal.SIGKILL),
    "tgkill of the host": lambda _, __: call("tgkill", os.getppid(), os.getppid(), signal.SIGKILL),
    "rt_sigqueueinfo": lambda victim, _: call("rt_sigqueueinfo", victim, 9, struct.pack("iii", 9, 0, -1) + bytes(116)),
    "rt_tgsigqueueinfo": lambda victim, _: call(
        "rt_tgsigqueueinfo", victim, victim, 9, struct.pack("iii", 9, 0, -1) + bytes(116)
    ),
    "pidfd_send_signal": lambda victim, _: call("pidfd_send_signal", call("pidfd_open", victim, 0), 9, 0, 0),
    "x32": lambda victim, _: call("x32 kill", victim, 9),
    "F_SETOWN": lambda victim, _: _owned(fcntl.F_SETOWN, victim),
    "F_SETOWN_EX": lambda victim, _: _owned(15, struct.pack("ii", 1, victim)),
    "FIOSETOWN": lambda victim, _: _owned_by_ioctl(victim),
    "F_SETSIG": lambda _, __: fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, signal.SIGKILL),
    "FIOASYNC": lambda _, __: fcntl.ioctl(os.pipe()[0], 0x5452, struct.pack("i", 1)),
    "prlimit": lambda victim, _: resource.prlimit(victim, resource.RLIMIT_CPU, (0, 0)),
    "setpriority": lambda victim, _: os.setpriority(os.PRIO_PROCESS, victim, 19),
    "ioprio_set": lambda victim, _: call("ioprio_set", 1, victim, 3 << 13),
    "affinity": lambda victim, _: os.sched_setaffinity(victim, {0}),
    "scheduler": lambda victim, _: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)),
    "ptrace": lambda victim, _: call("ptrace", 0x4206, victim, 0, 0),
    "process_vm_readv": lambda victim, _: _vm("process_vm_readv", victim),
    "process_vm_writev": lambda victim, _: _vm("process_vm_writev", victim),
    "process_madvise": lambda victim, _: call("process_madvise", call("pidfd_open", victim, 0), 0, 0, 4, 0),
    "process_mrelease": lambda victim, _: call("process_mrelease", call("pidfd_open", victim, 0), 0),
    "kcmp": lambda victim, _: call("kcmp", victim, victim, 1, 0, 0),
    "mem": lambda victim, _: _memory_written(victim),
    "mem of the host": lambda _, __: _memory_written(os.getppid()),
    "variables": lambda victim, _: Path(f"/proc/{victim}/environ").read_bytes(),
    "variables of the host": lambda _, __: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "descriptors": lambda victim, _: os.open(f"/proc/{victim}/fd/0", os.O_RDONLY),
    "pidfd_getfd": lambda victim, _: call("pidfd_getfd", call("pidfd_open", victim, 0), 0, 0),
    "unlink": lambda _, path: os.unlink(path),
    "rename": lambda _, path: os.rename(path, f"{path}.moved"),
    "replace": lambda _, path: os.replace(f"{path}.other", path),
    "truncate": lambda _, path: os.truncate(path, 0),
    "truncate while opening": lambda _, path: _opened(path, os.O_RDONLY | os.O_TRUNC),
    "write": lambda _, path: _opened(path, os.O_WRONLY),
    "make": lambda _, path: _opened(f"{path}.new", os.O_WRONLY | os.O_CREAT),
    "file without a name": lambda _, path: _opened(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda _, path: os.mkdir(f"{path}.made"),
    "rmdir": lambda _, path: os.rmdir(f"{os.path.dirname(path)}/empty"),
    "mkfifo": lambda _, path: os.mkfifo(f"{path}.pipe"),
    "link": lambda _, path: os.link(path, f"{path}.link"),
    "symlink": lambda _, path: os.symlink(path, f"{path}.symlink"),
    "chmod": lambda _, path: os.chmod(path, 0o777),
    "fchmod": lambda _, path: os.fchmod(os.open(path, os.O_RDONLY), 0o777),
    "fchmodat2": lambda _, path: call("fchmodat2", -100, path.encode(), 0o777, 0),
    "chown": lambda _, path: os.chown(path, os.getuid(), os.getgid()),
    "utime": lambda _, path: os.utime(path, (0, 0)),
    "setxattr": lambda _, path: os.setxattr(path, "user.x", b"x"),
    "lock": lambda _, path: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB),
    "shared memory": lambda _, __: _opened("/dev/shm/rlep-reached", os.O_RDWR | os.O_CREAT),
    "shmget": lambda _, __: call("shmget", 0, 4096, 0o1600),
    "message queue": lambda _, __: call("mq_open", b"rlep-reached", os.O_RDWR | os.O_CREAT, 0o600, 0),
    "memfd_create": lambda _, __: call("memfd_create", b"x", 0),
    "execveat": lambda _, __: call("execveat", os.open("/bin/true", os.O_RDONLY), b"", 0, 0, 0x1000),
    "execve": lambda _, __: os.execv("/bin/true", ["true"]),
    "fork": lambda _, __: os.fork() or os._exit(0),
    "session": lambda _, __: os.setsid(),
    "group": lambda _, __: os.setpgid(0, 0),
    "life after death": lambda _, __: _prctl(1, 0),
    "io_uring": lambda _, __: call("io_uring_setup", 1, bytes(128)),
    "setns": lambda victim, _: call("setns", call("pidfd_open", victim, 0), 0x10000000),
    "unshare": lambda _, __: call("unshare", 0x10000000),
    "mount": lambda _, path: call("mount", b"none", os.path.dirname(path).encode(), b"tmpfs", 0, 0),
    "keyctl": lambda _, __: call("keyctl", 0, -3, 0),
    "add_key": lambda _, __: call("add_key", b"user", b"rlep", b"x", 1, -3),
    "bpf": lambda _, __: call("bpf", 0, bytes(128), 128),
    "perf": lambda _, __: call("perf_event_open", struct.pack("IIQ", 1, 128, 0) + bytes(112), 0, -1, -1, 0),
    "userfaultfd": lambda _, __: call("userfaultfd", 1),
    "handle": lambda _, __: call("open_by_handle_at", -100, bytes(16), 0),
    "setuid": lambda _, __: os.setuid(os.getuid()),
    "packets": lambda _, __: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
}  # fmt: skip


def _prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def attempt(name: str, victim: int, path: str) -> str:
    """Make one attempt: ``refused`` where the kernel says that it may not be made."""
    try:
        found = REACHING[name](victim, path)
    except OSError as error:
        # ENOSYS: of the x32 ABI; all others would say that the attempt itself is wrong
        return "refused" if error.errno in (1, 13, 38) else f"{type(error).__name__}: {error}"
    return f"made: {found!r}"


def reach(reference: str, response: str) -> tuple[bool, str]:
    """Make the attempts in a response; ``reference``: victim and file."""
    victim, path = json.loads(reference)
    found = {name: attempt(name, victim, path) for name in json.loads(response)}
    return True, json.dumps({name: said for name, said in found.items() if said != "refused"})


def reports(reference: str, response: str) -> tuple[bool, str]:
    """Return the names of the variables of this process that are asked for and there, at the start too."""
    at_start = [one.partition("=")[0] for one in Path("/proc/self/environ").read_text().split("\0")]
    return True, json.dumps([name for name in json.loads(response) if name in os.environ or name in at_start])


def send(frame: bytes) -> None:
    """Write to whatever this process can write to but files: its replies."""
    for descriptor in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                os.write(descriptor, frame)
        except OSError:
            continue


def framed(body: bytes) -> bytes:
    """A frame with this body, as a worker's protocol has them."""
    return b"V" + struct.pack(">I", len(body)) + body


FRAMES = {
    "no frame": b"x" * 100,
    "a frame of 4 GiB": b"V\xff\xff\xff\xff",
    "a frame of 200 MiB": b"V" + struct.pack(">I", 200 << 20) + b"[" * 100,
    "no JSON": framed(b"{"),
    "a deep frame": framed(b"[" * 100_000 + b"]" * 100_000),
    "deep mappings": framed(b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
    "a million lists": framed(b"[" + b"[]," * 1_000_000 + b"[]]"),
    "a million lists after a text": framed(b'["\\"' + b"," * 100 + b'",' + b"[]," * 1_000_000 + b"[]]"),
    "a long number": framed(b"1" * 100_000),
    "null": framed(b"null"),
    "a text": framed(b'"correct"'),
    "no values": framed(b"[]"),
    "nothing": framed(b"{}"),
    "numbers for texts": framed(b'[1,2,3,4]'),
    "a status that is none": framed(b'["right",null,0.1,""]'),
    "time that is no number": framed(b'["correct",null,NaN,""]'),
    "time before the beginning": framed(b'["correct",null,-1,""]'),
    "a score above 1": framed(b'["correct",null,0.1,"",2,{}]'),
    "a score that is no number": framed(b'["correct",null,0.1,"",NaN,{}]'),
    "parts that are none": framed(b'["correct",null,0.1,"",1,{"a":[]}]'),
    "a part with a bad name": framed(b'["correct",null,0.1,"",1,{"\\u001b":1}]'),
    "an end that is none": framed(b'{"ended":"correct","how":""}'),
    "an end without a word": framed(b'{"ended":"crashed"}'),
    "the end of all": framed(b'{"failed":"give up"}'),
    "a server that is away": framed(b'{"away":"give up"}'),
    "another batch": framed(b'{"batch":99}'),
    "tools of its own": framed(b'{"tools":[]}'),
    "an answer to a later call": framed(b'[99,["open","x","",null]]'),
    "an answer to no call": framed(b'["x",["open","x","",null]]'),
    "a reward that is none": framed(b'[0,["ended",null,"",["correct"]]]'),
    "no end of ends": framed(b'{"ended":"crashed","how":""}') * 300,
    "no end of new beginnings": (framed(b'{"recycled":true}') + framed(b'{"ended":"recycled","how":""}')) * 300,
}  # fmt: skip
"""Bytes on the pipe of replies, none of them an answer of this worker's protocol."""


def forges(reference: str, response: str) -> bool:
    """Send a frame and go on for ever; other responses are compared."""
    if response in FRAMES:
        send(FRAMES[response])
        while True:
            signal.pause()
    return response == reference


def answers_ahead(reference: str, response: str) -> bool:
    """Answer the next batch's jobs, too."""
    if response == "ahead":
        send(framed(b'["wrong",null,0.1,""]') + framed(b'["correct",null,0.1,""]'))
        signal.pause()
    return False


def misses(reference: str, response: str) -> bool:
    """Read a variable."""
    return os.environ["MY_OWN"] == reference


class Forger:
    """An environment whose tool writes to its worker's pipe."""

    def reset(self) -> None:
        """Begin."""

    def act(self, name: str) -> str:
        """Send a frame, and go on for ever.

        Args:
            name: Which.
        """
        send(FRAMES[name])
        while True:
            signal.pause()

    def reach(self, victim: int, path: str) -> str:
        """Make every attempt.

        Args:
            victim: A process.
            path: A file.
        """
        found = {name: attempt(name, victim, path) for name in REACHING}
        return json.dumps({name: said for name, said in found.items() if said != "refused"})

    def variables(self, names: list[str]) -> str:
        """Say which variables are there.

        Args:
            names: Their names.
        """
        return reports("", json.dumps(names))[1]
