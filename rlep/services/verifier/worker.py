"""The killable process: a warm host that forks one runner at a time, and the runner that grades.

The host imports the symbolic engine once and never grades, so a runner that was killed is replaced by a fork within
milliseconds. Both ends of the pipes stay the same for the parent:

    parent --batch--> runner          runner --[batch number], one reply per job--> parent
                                      host   --how the runner ended, or why------> parent
                                               it cannot serve at all

Run as ``python -m rlep.services.verifier.worker PARENT_PID TASK LIMITS_JSON``.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, Final, NamedTuple

from rlep.core.errors import VerifierError
from rlep.core.scores import score_fault
from rlep.services.verifier import frames
from rlep.services.verifier.jail import Limits, confine, die_with_parent, start_clock, stop_clock

_WARM_UP = (
    ("1/3", "\\frac{1}{3}", "correct"),
    ("1/3", "0.333333", "wrong"),
    ("x^2-1", "(x-1)(x+1)", "correct"),
    ("(1,2]", "1<x\\le 2", "correct"),
    ("[-2,2]", "|x|\\le 2", "correct"),
    ("\\cos x", "\\sin(x+\\frac{\\pi}{2})", "correct"),
    ("1+i", "\\sqrt{2}e^{i\\pi/4}", "correct"),
    ("\\{a,b,c\\}", "\\{a,b\\}\\cup\\{c\\}", "correct"),
)
"""Reference, answer, and the verdict without which a worker does not serve."""


class BadScore(ValueError):
    """The user's function returned a score or parts that mean nothing: the response is ``crashed``."""


class Judgement(NamedTuple):
    """Finding of a judge."""

    status: str
    extracted: str | None
    failure: str = ""
    """Of what is ``crashed``: ``Kind: message``, and below it where in the user's function."""
    score: float | None = None
    parts: Mapping[str, float] = {}


Judge = Callable[[str, str], Judgement]
"""``(reference, answer) -> judgement``; may run for ever, exhaust memory, or kill its process."""

RECYCLED: Final = 0
OUT_OF_MEMORY: Final = 77
OUT_OF_STEP: Final = 78
UNUSABLE: Final = 79
_MAX_REASON = 2000
_MAX_FRAMES = 8
"""Innermost frames of a traceback that are shown."""


def main(arguments: list[str]) -> int:
    """Serve until the parent closes the pipe."""
    die_with_parent(int(arguments[0]))
    limits = Limits(**json.loads(arguments[2]))
    jobs, replies = _take_pipes()
    try:
        judge = load_judge(arguments[1])
    except Exception as error:  # noqa: BLE001 - the process's outermost frame, whatever the user's module raised
        os.write(replies, frames.encode({"failed": f"{type(error).__name__}: {error}"[:_MAX_REASON]}))
        return UNUSABLE
    return host(judge, limits, jobs, replies)


def _take_pipes() -> tuple[int, int]:
    """Move the protocol off descriptors 0 and 1, so that nothing a job prints or reads can touch it."""
    jobs, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return jobs, replies


def load_judge(task: str) -> Judge:
    """``math``, or the user's ``module:function``, imported and warmed up: each part of the engine's first use is slow.

    Raises VerifierError where the engine grades a known answer wrongly.
    """
    if task == "math":
        grading = importlib.import_module("rlep.services.verifier.grading")

        def judge(reference: str, answer: str) -> Judgement:
            return Judgement(*grading.judge(reference, answer))

        for reference, answer, wanted in _WARM_UP:
            random.seed(0)
            found = judge(reference, answer).status
            if found != wanted:
                raise VerifierError(
                    f"it grades the answer {answer} to {reference} as {found}, which is {wanted}; reinstall "
                    "math-verify, latex2sympy2-extended and sympy in the versions that rlep's package names"
                )
        return judge
    return user_judge(task)


def user_judge(task: str) -> Judge:
    """The user's function ``f(reference, response) -> found``, or ``-> (found, extracted)``, as a judge.

    Its attribute ``score_range`` declares scores in another range than [0, 1], e.g. ``(-1.0, 2.0)``.
    """
    module, _, name = task.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}, not a function")
    low, high = map(float, getattr(function, "score_range", (0.0, 1.0)))
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"{name}.score_range = ({low:g}, {high:g}) is no range")

    def judge(reference: str, response: str) -> Judgement:
        returned = function(reference, response)
        found, extracted = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        return judgement_of(found, None if extracted is None else str(extracted), low, high)

    return judge


def judgement_of(found: object, extracted: str | None, low: float = 0.0, high: float = 1.0) -> Judgement:
    """A bool as it is; a number, or a mapping with ``score`` and named parts, with its score, of [low, high] moved to [0, 1].

    Raises BadScore for anything else.
    """
    found = _unboxed(found)
    if isinstance(found, bool):
        return Judgement("correct" if found else "wrong", extracted)
    if isinstance(found, Mapping):
        parts = {name: _number(name, value) for name, value in found.items()}
        if "score" not in parts:
            raise BadScore('a mapping of named parts needs the key "score", the reward')
        score = parts.pop("score")
    elif isinstance(found, Real | Decimal):
        score, parts = float(found), {}
    else:
        raise BadScore(
            f"it returned {found!r:.60} ({type(found).__name__}), which is neither a bool, a number nor a mapping"
        )
    if not low <= score <= high:
        raise BadScore(
            f"score {score:g} does not lie in [{low:g}, {high:g}]; scale it, or declare its range as the function's "
            "attribute score_range, e.g. (-1.0, 2.0)"
        )
    score = (score - low) / (high - low)
    if fault := score_fault(score, parts):
        raise BadScore(fault)
    return Judgement("correct" if score == 1.0 else "wrong", extracted, "", score, parts)


def _unboxed(value: object) -> object:
    """A scalar of numpy or torch as Python's own."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _number(name: object, value: object) -> float:
    value = _unboxed(value)
    if not isinstance(name, str) or not isinstance(value, Real | Decimal):
        raise BadScore(f"{name!r:.80}: {value!r:.60} is not a number under a name")
    return float(value)


def host(judge: Judge, limits: Limits, jobs: int, replies: int) -> int:
    """Keep one runner alive; report how each one ended."""
    while True:
        parent = os.getpid()
        runner = os.fork()
        if runner == 0:
            _run(judge, limits, jobs, replies, parent)
        _, state = os.waitpid(runner, 0)
        code = os.waitstatus_to_exitcode(state)
        if code == OUT_OF_STEP:
            return OUT_OF_STEP
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        os.write(replies, frames.encode({"ended": how_it_ended(code), "how": f"Ended: its process, with {how}"}))


def how_it_ended(code: int) -> str:
    """The status of the job a runner died of, or ``recycled``."""
    if code == RECYCLED:
        return "recycled"
    if code in (-signal.SIGPROF, -signal.SIGXCPU):
        return "timeout"
    return "out_of_memory" if code == OUT_OF_MEMORY else "crashed"


def _run(judge: Judge, limits: Limits, jobs: int, replies: int, parent: int) -> None:
    """The runner's whole life; never returns."""
    code = 1
    try:
        die_with_parent(parent)
        confine(limits)
        code = serve(judge, limits, jobs, replies)
    except MemoryError:
        code = OUT_OF_MEMORY
    except frames.FrameError:
        code = OUT_OF_STEP
    finally:
        os._exit(code)


def serve(judge: Judge, limits: Limits, jobs: int, replies: int) -> int:
    """Grade batches until it is time to be replaced; the exit code."""
    done = 0
    while done < limits.recycle_jobs and _resident_mb() < limits.recycle_mb:
        batch: Any = frames.read_blocking(jobs)
        if batch is None:
            return OUT_OF_STEP
        os.write(replies, frames.encode({"batch": batch["batch"]}))
        for reference, answer in batch["jobs"]:
            os.write(replies, frames.encode(_grade_one(judge, limits, reference, answer)))
            done += 1
    return RECYCLED


def _grade_one(judge: Judge, limits: Limits, reference: str, answer: str) -> list[Any]:
    """``[status, extracted, seconds, failure]``, and of a score also ``[…, score, parts]``. Raises MemoryError."""
    random.seed(0)  # the engine draws test points; equal jobs must see equal ones
    started = time.perf_counter()
    start_clock(limits.cpu_seconds)
    try:
        found = judge(reference, answer)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job, whatever the user's function raised
        found = Judgement("crashed", None, _failure_of(error))
    finally:
        stop_clock()
    reply = [found.status, found.extracted, time.perf_counter() - started, found.failure]
    return reply if found.score is None else [*reply, found.score, found.parts]


def _failure_of(error: Exception) -> str:
    """``Kind: message``, and a traceback without the frames of this file."""
    frames_below = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    said = f"{type(error).__name__}: {error}"[:_MAX_REASON]
    if not frames_below:
        return said
    below = "".join(traceback.format_list(frames_below[-_MAX_FRAMES:]))
    return f"{said}\nTraceback (most recent call last):\n{below}".rstrip()


def _resident_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
