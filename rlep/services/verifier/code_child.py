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
import importlib.util
import json
import os
import resource
import signal
import sys
import sysconfig
import types
from typing import Any, NoReturn

READY = b"\x01"
FAILED, OUT_OF_MEMORY = 70, 77
"""Exit codes: an exception of the program, and none of its memory left."""
_MAX_REASON = 300


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
    confinement = _confinement()
    os.chdir("/")
    _prctl(libc, "PR_SET_PDEATHSIG", 1, signal.SIGKILL)
    if os.getppid() != limits["parent"]:
        os._exit(FAILED)
    _prctl(libc, "PR_SET_DUMPABLE", 4, 0)
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
    paths = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *_LIBRARIES
    confinement.confine("program", paths)


def _prctl(libc: ctypes.CDLL, name: str, option: int, argument: int) -> None:
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(f"prctl {name}: {os.strerror(ctypes.get_errno())}")


def _confinement() -> types.ModuleType:
    """The file of the rights that are given up, without the package that it is in."""
    path = os.path.join(os.path.dirname(__file__), os.pardir, "worker", "confinement.py")
    spec = importlib.util.spec_from_file_location("confinement", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.join(sys.base_prefix, "lib"), "/etc/ld.so.cache")


if __name__ == "__main__":
    main()
