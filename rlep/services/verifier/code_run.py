"""One untrusted program in a process of its own, and what came out of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlep.core.errors import VerifierError
from rlep.core.types import Status
from rlep.services.verifier.code_child import OUT_OF_MEMORY, READY
from rlep.services.worker.jail import Limits

_CHILD = str(Path(__file__).with_name("code_child.py"))
_SPARE_OUTPUT = 1 << 16
"""Bytes that a program may write beyond some times what is expected."""
_START_SECONDS = 60.0
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""All that the program's process gets: the run's own variables may hold secrets."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Exit of a program's process."""

    output: bytes
    """Output that it wrote, up to the bound."""
    exit_code: int
    """Negative: the signal that ended it."""
    late: bool
    """It was killed at the deadline."""
    flooded: bool
    """It was killed because it wrote too much."""

    @property
    def status(self) -> Status | None:
        """Why it says nothing about the tests, or None."""
        if self.late or self.exit_code in (-signal.SIGPROF, -signal.SIGXCPU):
            return "timeout"
        if self.exit_code == -signal.SIGKILL and not self.flooded:
            return "timeout"  # the last resort of the limit on CPU time
        return "out_of_memory" if self.exit_code == OUT_OF_MEMORY else None


def run_script(program: str, stdin: str, limits: Limits, *, expected: int) -> Finished:
    """Run it as a script; it may print some more than ``expected`` bytes. Raises VerifierError where it cannot be confined."""
    return _run({"program": program, "stdin": stdin}, limits, 8 * expected + _SPARE_OUTPUT)


def run_calls(program: str, calls: Sequence[tuple[str, bool]], limits: Limits, *, expected: int) -> Finished:
    """Run it, then the calls; the output is the values of those marked, for ``read_values``. Otherwise as ``run_script``."""
    return _run({"program": program, "calls": calls}, limits, 8 * expected + _SPARE_OUTPUT)


def read_values(output: bytes) -> list[Any] | None:
    """The values that a program's process reports, in the form of ``code_child.plain``; None for anything else.

    They are claims of the program, and never raise here, nor take long.
    """
    try:
        found = json.loads(output)
        return [_decoded(one, 0) for one in found] if isinstance(found, list) else None
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def read_exception(output: bytes) -> str:
    """The exception that a program's process reports, as one printable line; empty where it says nothing of the kind."""
    try:
        found = json.loads(output)
    except (ValueError, RecursionError, MemoryError):
        return ""
    raised = found.get("raised") if isinstance(found, dict) else None
    return one_line(raised) if isinstance(raised, str) else ""


def one_line(text: str) -> str:
    """The beginning of a text, in one line."""
    return "".join(one if one.isprintable() else " " for one in text[:_MAX_SHOWN])


_MAX_SHOWN = 200
_MAX_DEPTH = 51
_FLOAT_CHARS = 32
_SAME_HASH = 256
"""Most elements of a set, or keys of a dict, with one hash: a program may choose such, and each is compared with all others."""


def _decoded(pair: Any, depth: int) -> Any:
    kind, value = pair
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if (kind == "dict" or kind in _CONTAINERS) and not isinstance(value, list):
        raise ValueError(f"a {kind} is not written so")
    if kind == "dict":
        keys = _hashed([_decoded(key, depth + 1) for key, _ in value])
        return dict(zip(keys, [_decoded(one, depth + 1) for _, one in value], strict=True))
    if kind in _CONTAINERS:
        parts = [_decoded(one, depth + 1) for one in value]
        return _CONTAINERS[kind](_hashed(parts) if "set" in kind else parts)
    if kind == "None":
        return None
    if kind == "bool" and isinstance(value, bool):
        return value
    if not isinstance(value, str) or (kind == "float" and len(value) > _FLOAT_CHARS):
        raise ValueError(f"a {kind} is not written so")
    return _SCALARS[kind](value)


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "str": str,
    "bytes": bytes.fromhex,
}


def _hashed(elements: list[Any]) -> list[Any]:
    """``elements``, with hashes of which none is too frequent."""
    if elements and max(Counter(map(hash, elements)).values()) > _SAME_HASH:
        raise ValueError("too many elements with one hash")
    return elements


def _run(request: Mapping[str, Any], limits: Limits, most: int) -> Finished:
    confined = {"cpu_seconds": limits.cpu_seconds, "memory_mb": limits.memory_mb, "parent": os.getpid()}
    process = _started()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    source, stdout, stderr = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
    output, before, late, flooded = bytearray(), bytearray(), False, False
    os.set_blocking(source, False)
    waiting = memoryview(json.dumps({**request, "limits": confined}).encode("ascii"))
    poll = select.poll()
    poll.register(source, select.POLLOUT)
    poll.register(stdout, select.POLLIN)
    poll.register(stderr, select.POLLIN)
    deadline = time.monotonic() + _START_SECONDS
    try:
        while not flooded:
            events = {descriptor for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if not events:
                late = True
                break
            if source in events:
                waiting = _fed(source, waiting)
                if not waiting:
                    poll.unregister(source)
                    process.stdin.close()
            if stderr in events:
                chunk = os.read(stderr, 1 << 16)
                before += chunk
                if not chunk:
                    poll.unregister(stderr)
                    deadline = time.monotonic() + limits.wall_seconds
            if stdout in events:
                chunk = os.read(stdout, 1 << 16)
                if not chunk:
                    break
                output += chunk
                flooded = len(output) > most
        late = late or (not flooded and not _ended(process, deadline))
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
    if before != READY:
        why = (
            before.decode(errors="replace")
            or f"its process ended with code {process.returncode} before it was confined"
        )
        raise VerifierError(f"no program can be confined here, and so none is run: {why}")
    return Finished(bytes(output), process.returncode, late, flooded)


def _started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-s", "-S", "-P", _CHILD]
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=_ENVIRONMENT, cwd="/")
    except OSError as error:
        raise VerifierError(f"no process for a program can be started: {error}") from error


def _fed(descriptor: int, waiting: memoryview) -> memoryview:
    """Write what is left of the request; nothing where nobody reads it any more."""
    try:
        return waiting[os.write(descriptor, waiting[: 1 << 16]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for a process that has closed its output."""
    try:
        process.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
