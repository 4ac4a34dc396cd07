"""The process that runs one untrusted program: confines itself for good, then runs it. A script of the standard library alone.

It reads ``{"program", "limits", "stdin"}`` or ``{"program", "limits", "calls"}`` as JSON from descriptor 0. Descriptor 2 is
for the time before the program: it gets ``READY`` once every layer stands, or why the process refuses, and is closed then.
Descriptor 1 is for what the program prints, or the values of ``calls`` as one line of JSON.
``docs/reference/verifier.md`` says what the layers are for.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
import types
from typing import Any, NoReturn

READY = b"\x01"
FAILED, OUT_OF_MEMORY = 70, 77
"""Exit codes: an exception of the program, and none of its memory left."""
_MAX_REASON = 300

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_CALLS = {  # machine -> (audit architecture, the calls that the interpreter needs, tgkill, fcntl, ioctl, madvise)
    # read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
    # pread64 readv writev access sched_yield mremap dup dup2 nanosleep getpid exit uname getcwd readlink
    # gettimeofday getrlimit getrusage sysinfo times getuid getgid geteuid getegid sigaltstack gettid futex sched_getaffinity
    # getdents64 clock_gettime clock_getres clock_nanosleep exit_group openat newfstatat readlinkat faccessat set_robust_list
    # dup3 getrandom statx rseq faccessat2
    "x86_64": (
        0xC000003E,
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 19 20 21 24 25 32 33 35 39 60 63 79 89 96 97 98 99 100 102 104 107 "
        "108 131 186 202 204 217 228 229 230 231 257 262 267 269 273 292 318 332 334 439",
        234,
        72,
        16,
        28,
    ),
    "aarch64": (  # the same, where they exist, and ppoll
        0xC00000B7,
        "17 23 24 48 56 57 61 62 63 64 65 66 67 73 78 79 80 93 94 98 99 101 113 114 115 123 124 132 134 135 139 153 160 "
        "163 165 169 172 174 175 176 177 178 179 214 215 216 222 226 278 291 293 439",
        131,
        25,
        29,
        233,
    ),
}
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; with F_SETOWN the kernel would signal others
_FCNTL = (0, 1, 2, 3, 1030)
_IOCTL = (0x5401, 0x5450, 0x5451)  # TCGETS, FIONCLEX, FIOCLEX
_MADVISE = (0, 1, 2, 3, 4, 8)  # NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE; others merge, poison or pin pages
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""Version of Landlock -> all file rights that it knows; later ones know no more."""
_READ = 0b1101  # execute (to map libraries), read files, read directories


def main() -> NoReturn:
    """Run one program; never returns."""
    request = json.loads(sys.stdin.buffer.read())
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        _replace_streams(request.get("stdin"))
        _confine(request["limits"])
    except OSError as error:
        os.write(2, str(error).encode())
        os._exit(FAILED)
    os.write(2, READY)
    # A program can open its own end of a pipe for reading: what it could take from the parent so is its own output alone.
    for standard in (1, 2) if "calls" in request else (2,):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # without site, which adds them, they are missing
    code = FAILED
    try:
        if "calls" in request:
            answer = _values(request["program"], request["calls"])
            _write_all(replies, answer)
        else:
            exec(compile(request["program"], "answer.py", "exec"), _module("__main__"))  # noqa: S102 - what this is for
        code = 0
    except SystemExit as left:
        code = 0 if left.code is None else left.code if isinstance(left.code, int) else FAILED
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException as error:  # noqa: BLE001 - the program's own, of any kind
        code = FAILED
        if "calls" in request:
            _report(replies, error)
    try:
        if "calls" not in request:  # fast output is often written at the end, or when its file goes
            atexit._run_exitfuncs()
            vars(sys.modules["__main__"]).clear()
        for stream in (sys.stdout, sys.__stdout__):
            if stream is not None:
                stream.flush()
    except BaseException:  # noqa: BLE001 - the program may have replaced or closed it
        code = code or FAILED
    os._exit(code & 0xFF)


def _report(descriptor: int, error: BaseException) -> None:
    try:
        _write_all(descriptor, json.dumps({"raised": f"{type(error).__name__}: {error}"[:_MAX_REASON]}).encode("ascii"))
    except BaseException:  # noqa: BLE001 - the exception is the program's, and so is what it does when it is printed
        return


def _module(name: str) -> dict[str, Any]:
    """The names of a new module, which is found under its name: ``dataclasses`` and ``typing`` look annotations up in it."""
    sys.modules[name] = types.ModuleType(name)
    return vars(sys.modules[name])


def _values(program: str, calls: list[list[Any]]) -> bytes:
    """Run ``program``, then each ``(source, is an expression)`` in the same names; the expressions' values."""
    names = _module("answer")
    exec(compile(program, "answer.py", "exec"), names)  # noqa: S102
    values = []
    for source, wanted in calls:
        if wanted:
            values.append(plain(eval(compile(source, "test", "eval"), names), 0))  # noqa: S307
        else:
            exec(compile(source, "test", "exec"), names)  # noqa: S102
    return json.dumps(values).encode("ascii")


def plain(value: Any, depth: int) -> list[Any]:
    """A value as a tag and JSON: ``["int", "3"]``, ``["list", [["str", "a"]]]``. Subclasses count as what they derive from.

    Raises TypeError for what has no such form, ValueError where it is too deep.
    """
    if depth > 50:
        raise ValueError("too deep")
    if value is None:
        return ["None", None]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, int):
        return ["int", hex(value)]
    if isinstance(value, float):
        return ["float", float.__repr__(value)]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    if isinstance(value, bytes):
        return ["bytes", bytes.hex(value)]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [plain(one, depth + 1) for one in value]]
    if isinstance(value, dict):
        return ["dict", [[plain(key, depth + 1), plain(one, depth + 1)] for key, one in dict.items(value)]]
    raise TypeError(f"a {type(value).__name__} is not compared")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _replace_streams(stdin: str | None) -> None:
    """Descriptor 0 becomes a file in memory."""
    source = os.memfd_create("stdin")
    _write_all(source, (stdin or "").encode("utf-8", "surrogatepass"))
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.close(source)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)


def _confine(limits: dict[str, Any]) -> None:
    """Every layer, or OSError naming the one that this machine lacks."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir("/")
    _prctl(libc, "PR_SET_PDEATHSIG", 1, signal.SIGKILL)
    if os.getppid() != limits["parent"]:
        os._exit(FAILED)
    _prctl(libc, "PR_SET_DUMPABLE", 4, 0)
    _prctl(libc, "PR_SET_NO_NEW_PRIVS", 38, 1)
    _landlock(libc)
    memory, seconds = limits["memory_mb"] << 20, limits["cpu_seconds"]
    last = int(seconds) + 2  # of CPU time; the timer below is finer, and the program can switch it off
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, last),
    ):
        resource.setrlimit(kind, (value, value))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _seccomp(libc)


def _prctl(libc: ctypes.CDLL, name: str, option: int, argument: int) -> None:
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(f"prctl {name}: {os.strerror(ctypes.get_errno())}")


def _landlock(libc: ctypes.CDLL) -> None:
    """Nothing of the file system but reading the standard library and system libraries, and no TCP."""
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        raise OSError(f"Landlock (Linux 5.13 or later, switched on): {os.strerror(ctypes.get_errno())}")
    rights = _RIGHTS[min(version, max(_RIGHTS))]
    attributes = struct.pack("QQQ", rights, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(_CREATE_RULESET, ctypes.create_string_buffer(attributes), size, 0)
    if rules < 0:
        raise OSError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    paths = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *_LIBRARIES
    for path in {os.path.realpath(path) for path in paths if os.path.exists(path)}:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ if os.path.isdir(path) else _READ & ~0b1000
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place))
        if libc.syscall(_ADD_RULE, rules, 1, rule, 0) != 0:
            raise OSError(f"Landlock, {path}: {os.strerror(ctypes.get_errno())}")
        os.close(place)
    if libc.syscall(_RESTRICT_SELF, rules, 0) != 0:
        raise OSError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    os.close(rules)


_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.join(sys.base_prefix, "lib"), "/etc/ld.so.cache")


def _seccomp(libc: ctypes.CDLL) -> None:
    """Only calls that an interpreter needs: no process, thread, socket, signal to others, shared memory or kernel interface."""
    if platform.machine() not in _CALLS:
        raise OSError(f"a filter of system calls for {platform.machine()}: there is one for {' and '.join(_CALLS)}")
    architecture, numbers, tgkill, fcntl, ioctl, madvise = _CALLS[platform.machine()]
    allowed = [int(number) for number in numbers.split()]
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)]
    program.append((_LOAD, 0, 0, _NUMBER))
    for call, argument, values in (
        (tgkill, 0, (os.getpid(),)),  # abort() sends itself a signal
        (fcntl, 1, _FCNTL),
        (ioctl, 1, _IOCTL),
        (madvise, 2, _MADVISE),
    ):
        checked = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
        checked += [(_JUMP_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
        program += [
            (_JUMP_EQUAL, 0, len(checked) + 2, call),
            *checked,
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program += [(_JUMP_EQUAL, len(allowed) - at, 0, call) for at, call in enumerate(allowed)]
    program += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    if libc.prctl(22, 2, header, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(f"seccomp: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
