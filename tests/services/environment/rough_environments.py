"""Environments that misbehave in every way that the documents promise to survive; run in worker processes by name."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np


class Rough:
    """Tools that misbehave."""

    closed: int = 0

    def reset(self, where: str = "", **row: Any) -> str | None:
        """Begin; ``where`` = "reset" raises."""
        self._row = row
        self._hoard: list[bytearray] = []
        if where == "reset":
            raise KeyError("no such level")
        return row.get("greeting")

    def echo(self, text: str, times: int = 1, mode: Literal["plain", "loud"] = "plain") -> str:
        """Repeat.

        Args:
            text: What to say.
            times: How often.
            mode: How.
        """
        return text * times if mode == "plain" else text.upper() * times

    def fail(self, text: str) -> str:
        """Raise.

        Args:
            text: The message.
        """
        raise ValueError(text)

    def give(self, kind: str) -> Any:
        """Return something that is no text.

        Args:
            kind: What.
        """
        parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
        return {"none": None, "number": 4.5, "dict": {"a": [1]}, "list": [1, 2], "parts": parts, "surrogate": "\ud800"}[
            kind
        ]

    def print_much(self) -> str:
        """Print megabytes, and write to the standard streams' descriptors."""
        print("x" * 5_000_000)  # noqa: T201
        print("y" * 100, file=sys.stderr)  # noqa: T201
        os.write(1, b"V\x00\x00\x00\x02[]")
        return "printed"

    def misbehave(self, how: str) -> str:
        """Do something that a worker must stop or survive.

        Args:
            how: What.
        """
        return str(MISDEEDS[how](self))

    def draw(self) -> str:
        """Draw numbers, of both streams."""
        return f"{random.random()} {np.random.random()}"


TABLE: list[str] = []


class Unspeakable(BaseException):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def unspeakable(_: Rough) -> None:
    raise Unspeakable


def disarm(_: Rough) -> None:
    """Take the signals of the clock, as libraries with time limits of their own do."""
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_IGN)


def open_files(rough: Rough) -> int:
    rough._row["files"] = [open(os.devnull) for _ in range(200)]  # noqa: SIM115
    return len(rough._row["files"])


def loop(_: Rough) -> None:
    while True:
        pass


def sleep(_: Rough) -> None:
    time.sleep(1000)


def stubborn(_: Rough) -> None:
    while True:
        try:
            while True:
                pass
        except BaseException:  # noqa: BLE001
            continue


def deaf(_: Rough) -> None:
    """Compute in C, where no signal is heard."""
    collections.deque(itertools.repeat(0), maxlen=0)


def build(_: Rough) -> str:
    """Build a table at its first use, for longer than a call may compute."""
    if not TABLE:
        until = time.process_time() + 0.9
        while time.process_time() < until:
            pass
        TABLE.append("built")
    return TABLE[0]


def dead_asleep(_: Rough) -> None:
    """Wait with all signals blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGPROF])
    time.sleep(1000)


def hoard(rough: Rough) -> None:
    while True:
        rough._hoard.append(bytearray(1 << 20))


def thread(_: Rough) -> None:
    threading.Thread(target=print).start()


MISDEEDS = {
    "build": build,
    "loop": loop,
    "sleep": sleep,
    "stubborn": stubborn,
    "deaf": deaf,
    "dead_asleep": dead_asleep,
    "hoard": hoard,
    "leave": lambda _: sys.exit("enough"),
    "mumble": lambda _: sys.exit("\ud800"),
    "unspeakable": unspeakable,
    "disarm": disarm,
    "open_files": open_files,
    "die": lambda _: os._exit(0),
    "connect": lambda _: socket.socket(),
    "spawn": lambda _: subprocess.run(["true"], check=True),
    "fork": lambda _: os.fork(),
    "thread": thread,
    "write": lambda _: Path("/tmp/rough").write_text("x"),
    "worker": lambda _: os.getpid(),
    "host": lambda _: os.getppid(),
}


class Rewarded:
    """A game whose reward is what the row says."""

    score_range = (-1.0, 1.0)

    closed = 0
    """Objects of this process that were."""

    def reset(self, reward: Any, where: str = "") -> None:
        """Begin."""
        self._reward, self._where = reward, where

    def step(self, text: str) -> str | None:
        """Answer: "end" ends, "bad" returns a number, "closed" says how many were."""
        if text == "closed":
            return str(Rewarded.closed)
        if self._where == "step":
            raise RuntimeError("the board is broken")
        return {"end": None, "bad": 3}.get(text, f"you said {text}")  # type: ignore[return-value]

    def get_reward(self) -> Any:
        """Return the row's reward."""
        if self._where == "reward":
            raise ZeroDivisionError("no games")
        return float("nan") if self._reward == "nan" else self._reward

    def close(self) -> None:
        """End."""
        Rewarded.closed += 1
        if self._where == "close":
            raise OSError("stuck")


class Waiting:
    """Async tools."""

    async def reset(self) -> str:
        """Begin."""
        return "ready"

    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        import asyncio

        await asyncio.sleep(seconds)
        return f"waited {seconds:g}"

    async def refuse(self) -> None:
        """Wait, and go on when cancelled."""
        import asyncio

        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)


class Web:
    """Names that a worker's own code might have, too."""

    def reset(self, **row: Any) -> str:
        """Begin."""
        return ", ".join(row)

    def request(self, method: str, call: str, name: str) -> str:
        """Ask.

        Args:
            method: Verb.
            call: Path.
            name: Host.
        """
        return f"{method} {call} {name}"


class Both:
    """Tools and step."""

    def reset(self) -> None: ...
    def step(self, text: str) -> str:
        return text

    def look(self) -> str:
        """Look."""
        return ""


class Neither:
    """No tool, no step."""

    def reset(self) -> None: ...
    def _hidden(self) -> None: ...


class NoReset:
    """No reset."""

    def look(self) -> str:
        """Look."""
        return ""


class Undocumented:
    """A tool without a docstring."""

    def reset(self) -> None: ...
    def look(self, at: str) -> str:
        return at


class Untyped:
    """A tool without types."""

    def reset(self) -> None: ...
    def look(self, at):  # type: ignore[no-untyped-def]
        """Look.

        Args:
            at: What at.
        """


class Open:
    """A tool with any number of arguments."""

    def reset(self) -> None: ...
    def look(self, *at: str) -> str:
        """Look.

        Args:
            at: What at.
        """
        return ""


class BadRange:
    """A range that is none."""

    score_range = (1.0, 0.0)

    def reset(self) -> None: ...
    def step(self, text: str) -> str:
        return text


def function() -> None:
    """Not a class."""
