"""``rlep console`` in a process of its own, asked over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANSWER_S = 600.0
"""Longest wait for the next part of an answer."""
TICKS = os.sysconf("SC_CLK_TCK")
Figure = list[float]


class Client:
    """Asks a console in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], printed: str) -> None:
        self._process, self._address = process, printed.partition("/?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self._opener.open(printed, timeout=ANSWER_S).close()

    def open(self, path: str) -> Iterator[bytes]:
        """The lines of an answer as they come."""
        with self._opener.open(self._address + path, timeout=ANSWER_S) as answer:
            yield from answer

    def ask(self, path: str) -> Figure:
        """Seconds, and processor seconds of the console, that an answer takes."""
        busy, begun = self.busy(), time.perf_counter()
        for _ in self.open(path):
            pass
        return [time.perf_counter() - begun, self.busy() - busy]

    def busy(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> float:
        """Most memory so far, MB."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


@contextmanager
def console(runs: Path, *options: str | Path) -> Iterator[Client]:
    """``rlep console`` over ``runs`` until the block ends; it is gone then."""
    command = [sys.executable, "-m", "rlep", "console", *map(str, [runs, "--listen", "0", *options])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Client(process, process.stdout.readline().strip())
        finally:
            process.terminate()
