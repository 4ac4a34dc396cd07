"""Functions that the tests give to the verifier as a user would; imported by worker processes."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial

import httpx
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
    "list part": lambda: {"score": 1.0, "format": [1]},
    "texts": lambda: {"score": 1.0, "gold": None, "pred": "4", "acc": True},
    "texts beside": lambda: ({"score": 0.5, "pred": "4"}, "seen"),
    "sum above": lambda: 0.2 + 0.4 + 0.3 + 0.1,
    "sum below": lambda: 0.7 + 0.2 + 0.1,
    "long": lambda: (True, "4" * 5000),
    "signalling": lambda: Decimal("sNaN"),
    "huge": lambda: 10**400,
    "coroutine": lambda: asyncio.sleep(0),
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
bound = partial(ranged)
turned = partial(ranged)
turned.score_range = (1, -1)  # type: ignore[attr-defined]


BUILT: list[int] = []


def build_at_first(reference: str, response: str) -> tuple[bool, str]:
    """Computes for a second and a half at its first call in a process, to keep something; does what the response says."""
    if not BUILT:
        until = time.process_time() + 1.5
        while time.process_time() < until:
            pass
        BUILT.append(os.getpid())
    return misbehave(reference, response) is True, str(BUILT[0])


def misbehave(reference: str, response: str) -> bool | tuple[bool, str]:
    """Does what the response says."""
    if response == "pid":
        return True, str(os.getpid())
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


_CALLS = itertools.count(1)


def numbered(response: str) -> tuple[bool, str]:
    """Extracts how often it was called in its process."""
    return True, str(next(_CALLS))


def escape(reference: str, response: str) -> bool:
    """True where the attempt named by the response was refused."""
    try:
        if response == "network":
            socket.socket()
        elif response == "process":
            subprocess.run(["true"], check=False)
        elif response == "fork":
            if os.fork() == 0:
                os._exit(0)
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


def tries(reference: str, response: str) -> bool:
    """Does what the response names, and lets the error pass."""
    if response == "network":
        socket.socket()
    else:
        threading.Thread(target=print).start()
    return True


class Unusual(BaseException):
    """What ``except Exception`` does not catch."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "unusual": lambda: Unusual("no"),
}


def quits(reference: str, response: str) -> bool:
    """Raises what the response names, which would end a program."""
    if response in RAISED:
        raise RAISED[response]()
    return response == reference


async def quits_later(reference: str, response: str) -> bool:
    """The same between two turns of the event loop."""
    await asyncio.sleep(0)
    return quits(reference, response)


def named(response: str, prompt: str, level: int, missing: str = "default") -> tuple[bool, str]:
    """Asks for a column, and for one with a default that rows may lack."""
    return level == 3, f"{prompt}|{response}|{level}|{missing}"


def rest(response: str, **columns: object) -> tuple[bool, str]:
    """Takes every column."""
    return True, " ".join(f"{name}={value}" for name, value in sorted(columns.items()))


def of_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, int]) -> dict[str, float]:
    """The signature of verl's compute_score."""
    return {
        "score": float(solution_str == ground_truth),
        "gsm8k": float(data_source == "gsm8k"),
        "info": extra_info["i"],
    }


def of_trl(prompts: list[str], completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """The signature of TRL's reward functions."""
    return [float(one == f"{prompt} {gold}") for prompt, one, gold in zip(prompts, completions, answer, strict=True)]


def of_messages(completions: list[list[dict[str, str]]], **kwargs: list[list[dict[str, str]]]) -> list[float]:
    """TRL's form of conversations."""
    return [float(one[0]["content"] == kwargs["prompts"][0][-1]["content"]) for one in completions]


async def only_some(completions: list[str], **kwargs: object) -> list[float | None]:
    """None where it does not apply, as of TRL's functions for several tasks."""
    await asyncio.sleep(0)
    return [None if one == "not mine" else float(one == "right") for one in completions]


async def waits(reference: str, response: str) -> object:
    """Waits in turn with another task, and returns what the response names."""
    turns: list[str] = []

    async def turn(name: str) -> None:
        for _ in range(2):
            turns.append(name)
            await asyncio.sleep(0.001)

    await asyncio.gather(turn("a"), turn("b"))
    assert turns == ["a", "b", "a", "b"]
    if response == "raise":
        raise ValueError("no")
    return RETURNED[response]()


def undeclared(reference: str, response: str) -> object:
    """Returns what must be waited for, without being async."""
    return waits(reference, response)


def right(reference: str, response: str) -> bool:
    return response.startswith(reference)


def brief(response: str) -> dict[str, float]:
    return {"score": 10 - len(response), "length": len(response)}


brief.score_range = (0, 10)  # type: ignore[attr-defined]


def by_position(reference: str, response: str, /, *, strict: bool = True) -> bool:
    """Positional only, with a keyword that has a default."""
    return strict and reference == response


def by_keyword(*, solution_str: str, ground_truth: str, extra_info: dict[str, object], method: str = "strict") -> float:
    """Keywords only, verl's, of which one is not in every row."""
    return float(solution_str == ground_truth and method == "strict" and not extra_info)


def by_prompts(prompts: list[object], **kwargs: list[list[dict[str, str]]]) -> list[float]:
    """Takes TRL's completions out of the rest."""
    return [float(one[0]["content"] == "4") for one in kwargs["completions"]]


def blind(**kwargs: object) -> float:
    """Names nothing by which it would see the response."""
    return 1.0


def blinder(*values: object) -> float:
    return 1.0


class Plugin:
    """A reward as a class, of which there has to be an object."""

    def __call__(self, completions: list[str], solution: list[str], **kwargs: object) -> list[float]:
        return [float(one[0]["content"] == gold) for one, gold in zip(completions, solution, strict=True)]  # type: ignore[index]


plugin = Plugin()


class Later:
    """An object that is called, and async."""

    async def __call__(self, reference: str, response: str, /) -> bool:
        await asyncio.sleep(0)
        return reference == response


later = Later()


def by_server(reference: str, response: str) -> bool:
    """Asks the server at ``reference`` with the client of the standard library, in a thread."""
    with urllib.request.urlopen(f"{reference}/{response}") as answer:
        return bool(answer.read() == b"yes")


async def by_async_server(reference: str, response: str) -> bool:
    """The same with httpx."""
    if response == "die":
        os._exit(3)
    async with httpx.AsyncClient(timeout=None) as client:
        answer = await client.get(f"{reference}/{response}")
    answer.raise_for_status()
    return answer.text == "yes"


def of_texts(completions: list[str], answer: list[str]) -> list[float]:
    """As TRL calls it where prompts are texts."""
    return [float(right in text) for text, right in zip(completions, answer, strict=True)]


def of_equal_texts(completions: list[str], answer: list[str]) -> list[float]:
    """The same, of whole responses."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def of_other_texts(completions: list[str], answer: list[str]) -> list[float]:
    """The same, the other way round."""
    return [0.0 if text != right else 1.0 for text, right in zip(completions, answer, strict=True)]
