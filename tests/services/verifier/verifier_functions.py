"""Functions that the tests give to the verifier as a user would; imported by worker processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time


def same_length(reference: str, response: str) -> tuple[bool, str]:
    """A well-behaved one."""
    sys.stdout.write("what is written here goes nowhere")
    return len(reference) == len(response), str(len(response))


def misbehave(reference: str, response: str) -> bool:
    """Does what the response says."""
    if response == "loop":
        while True:
            pass
    if response == "sleep":
        time.sleep(3600)
    if response == "die":
        os._exit(3)
    if response == "leave":
        os._exit(0)
    if response == "desert":
        os._exit(78)  # the code that ends the host, too
    if response == "segfault":
        signal.raise_signal(signal.SIGSEGV)
    if response == "memory":
        return len("x" * (1 << 34)) == 0
    if response == "raise":
        raise ValueError("no")
    if response == "truthy":
        return 1  # type: ignore[return-value]
    return response == reference


def escape(reference: str, response: str) -> bool:
    """True where the attempt named by the response was refused."""
    try:
        if response == "network":
            socket.socket()
        elif response == "process":
            subprocess.run(["true"], check=False)
        elif response == "thread":
            threading.Thread(target=print).start()
        elif response == "file":
            with open(reference, "w") as file:
                file.write("x")
        elif response == "signal":
            os.kill(os.getppid(), signal.SIGKILL)
        elif response == "signal through a descriptor":
            signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)
    except (OSError, RuntimeError):
        return True
    return False
