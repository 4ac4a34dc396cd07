"""The parent's side of a worker process: its start and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

from rlep.services.worker.jail import Limits

START_SECONDS = 120.0
"""Longest wait for a sign of life of a new process."""


def start_process(module: str, task: str, limits: Limits) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a session of its own without waiting for it to be ready. Raises OSError.

    It finds modules where this process does: a file of the working directory takes the place of none of Python's own.
    The kernel kills the process when the thread that called this ends.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(os.getpid()), task, json.dumps(asdict(limits))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
        env=_environment(),
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the process and its runner now, and close its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _environment() -> dict[str, str]:
    """The parent's, made reproducible: fixed hash order (sets are iterated over), one thread, same modules."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
