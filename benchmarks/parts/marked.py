"""The processes of a run that is looked at from outside, orphans included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil


def marked(variable: str) -> Iterator[psutil.Process]:
    """Every other living process whose environment has this process's value of the variable, and their children.

    Redis and actors overwrite their environment: those are found as children.
    """
    found = {os.getpid()}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(variable) == os.environ[variable] or process.ppid() in found:
                found.add(process.pid)
                yield process
