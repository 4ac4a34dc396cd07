"""Functions that the tests give to the verifier as a user would; imported by worker processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np


def same_length(reference: str, response: str) -> tuple[bool, str]:
    """A well-behaved one."""
    sys.stdout.write("what is written here goes nowhere")
    return len(reference) == len(response), str(len(response))


RETURNED: dict[str, Callable[[], object]] = {
    "true": lambda: True,
    "false": lambda: (False, "seen"),
    "full": lambda: 1.0,
    "most": lambda: (0.75, "most of it"),
    "none": lambda: 0.0,
    "parts": lambda: {"score": 0.5, "format": True, "steps": 7, "length-penalty": -0.25},
    "sixteen": lambda: ({"score": 1} | {f"part{n}": n for n in range(16)}, "many"),
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "above": lambda: 1.001,
    "below": lambda: -0.25,
    "seventeen": lambda: {"score": 1.0} | {f"part{n}": n for n in range(17)},
    "no score": lambda: {"format": 1.0},
    "bad name": lambda: {"score": 1.0, "a/b": 1.0},
    "no name": lambda: {"score": 1.0, 7: 1.0},
    "bad part": lambda: {"score": 1.0, "format": float("nan")},
    "text part": lambda: {"score": 1.0, "format": "good"},
    "text score": lambda: {"score": "1.0"},
    "whole number": lambda: 1,
    "no whole number": lambda: 0,
    "another number": lambda: 2,
    "fraction": lambda: (Fraction(3, 4), "seen"),
    "decimal": lambda: Decimal("0.75"),
    "numpy float": lambda: np.float16(0.75),
    "numpy int": lambda: np.int64(1),
    "numpy true": lambda: np.bool_(True),
    "numpy false": lambda: (np.bool_(False), "seen"),
    "numpy array": lambda: np.array(0.75),
    "numpy part": lambda: {"score": np.float32(0.5), "format": np.bool_(True)},
    "array": lambda: np.array([0.75]),
    "text": lambda: "1.0",
    "nothing": lambda: None,
    "list": lambda: [1.0],
    "three": lambda: (True, "seen", 3),
    "complex": lambda: 1j,
}


def returns(reference: str, response: str) -> object:
    """What the response names."""
    return RETURNED[response]()


def ranged(reference: str, response: str) -> float:
    """The response as a number, in a range of its own."""
    return float(response)


ranged.score_range = (-1.0, 3.0)  # type: ignore[attr-defined]
turned = partial(ranged)
turned.score_range = (1, -1)  # type: ignore[attr-defined]


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
