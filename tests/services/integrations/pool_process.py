"""A pool server in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def pool_process(directory: Path, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """``rlep pool serve`` over an embedded Redis; gives its address."""
    command = [sys.executable, "-m", "rlep", "pool", "serve", "--embedded", str(directory), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGTERM)
