"""Runs one redis-server for as long as anybody uses it. A script of its own: standard library only, started with ``-I -S``.

``supervisor.py BINARY CONFIG USERS LOCK_FD``, in the data directory. Whoever uses the server holds a shared lock on the file
``USERS``; the kernel lets go of it however the user ends. This process waits for an exclusive lock on it: once it has
that, nobody uses the server any more, so it stops it (SIGTERM, then SIGKILL) and ends. It starts a server that died again,
but gives up on one that does not come up. The server itself is killed by the kernel should this process be killed.
``LOCK_FD`` is an open file with an exclusive lock: held here and in the server, it says that the directory is served.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
SHORT_LIFE = 2.0  # a server that lived less than this many seconds did not come up
SHORT_LIVES = 3  # that many in a row end the supervisor; one that was killed from outside does not count
RESTART_PAUSE = 0.1  # seconds


class ChildChanged(Exception):
    """The server process ended, stopped or went on (raised by the SIGCHLD handler while this process waits)."""


def on_child(_number: int, _frame: FrameType | None) -> None:
    """Interrupt the wait for the users' lock, once."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raise ChildChanged


def on_terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave through the ``finally`` that stops the server."""
    sys.exit(0)


def start(command: list[str], lock: int) -> "subprocess.Popen[bytes]":
    """The server process, which the kernel kills when this process is gone."""
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # This process has one thread, so that running Python between fork and exec is safe.
    return subprocess.Popen(command, pass_fds=(lock,), preexec_fn=die_with_parent, stdin=subprocess.DEVNULL)  # noqa: PLW1509


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Let the server write out what it has and end; kill it if it does not."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server.terminate()
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def unused(server: "subprocess.Popen[bytes]", waiting: int) -> bool:
    """Wait until nobody uses the server (True) or it has ended (False)."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, on_child)
            if server.poll() is not None:
                return False
            fcntl.flock(waiting, fcntl.LOCK_EX)
            return True
        except ChildChanged:
            continue


def serve(command: list[str], users: Path, lock: int) -> int:
    """Run the server until nobody uses it; the exit status is 0 then, or the server's own when it does not come up."""
    short_lives = 0
    with users.open("w") as waiting:
        while short_lives < SHORT_LIVES:
            started = time.monotonic()
            server = start(command, lock)
            try:
                if unused(server, waiting.fileno()):
                    return 0
            finally:
                stop(server)
            short = time.monotonic() - started < SHORT_LIFE and server.returncode != -signal.SIGKILL
            short_lives = short_lives + 1 if short else 0
            time.sleep(RESTART_PAUSE)
    return server.returncode or 1


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the starter is nobody's parent: it need not collect this process, and cannot take it along
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_terminate)
    sys.exit(serve(sys.argv[1:3], Path(sys.argv[3]), int(sys.argv[4])))
