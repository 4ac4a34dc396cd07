"""A part that is tried in a process of its own with a deadline."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any

import psutil

from rlep.check.finding import CheckSkipped, Finding
from rlep.core.errors import RlepError, first_line

END_S = 10.0
"""Seconds in which a process that has answered, and what it started, have to end."""


class CheckFailed(RlepError):
    """A part does not do what it should on this machine."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``run`` returns what it measured, or raises ``CheckFailed`` or ``CheckSkipped``."""

    name: str
    run: Callable[[], str]
    """Can be pickled."""
    remedy: str
    deadline_s: float

    def finding(self) -> Finding:
        """Run it in a process of its own, whose messages are kept for a failure; whatever it raises is one."""
        with tempfile.TemporaryFile() as output:
            try:
                answers = call_all_apart(self.run, [()], deadline_s=self.deadline_s, output=output)
                return Finding(self.name, "ok", str(answers[0]))
            except CheckSkipped as error:
                return Finding(self.name, "skipped", str(error))
            except CheckFailed as error:
                output.seek(0)
                messages = output.read().decode(errors="replace").strip()
                return Finding(self.name, "wrong", str(error), self.remedy, messages)


@contextmanager
def _printing_to(output: IO[bytes] | None) -> Iterator[None]:
    """Processes that are started in the block print there, Python's resource tracker too."""
    if output is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    before = [(number, os.dup(number)) for number in (1, 2)]
    for number, _ in before:
        os.dup2(output.fileno(), number)
    try:
        yield
    finally:
        for number, kept in before:
            os.dup2(kept, number)
            os.close(kept)


def call_all_apart(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], *, deadline_s: float, output: IO[bytes] | None = None
) -> list[Any]:
    """``function`` once for each of ``calls``, all at the same time, each in a new process; their answers in order.

    What the processes print goes to the file ``output``, or where this process prints.
    They end with everything they started, and the first failure ends all.

    Raises:
        CheckFailed: one raised an error, ended without an answer, or took longer than ``deadline_s``.
        CheckSkipped: one did.
    """
    context, ends = multiprocessing.get_context("spawn"), time.monotonic() + deadline_s
    pipes = [context.Pipe(duplex=False) for _ in calls]
    processes = [
        context.Process(target=_answer, args=(sender, function, args))
        for (_, sender), args in zip(pipes, calls, strict=True)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        with _printing_to(output):
            process.start()
        sender.close()  # only the process has it now: its end is seen here
    grace_s = 0.0
    try:
        answers = [_result(receiver, function, ends, deadline_s) for receiver, _ in pipes]
        grace_s = END_S
        return answers
    finally:
        for process in processes:
            _end(process, grace_s)


def _result(receiver: Connection, function: Callable[..., Any], ends: float, deadline_s: float) -> Any:
    name = getattr(function, "__name__", "the check")
    if not receiver.poll(max(0.0, ends - time.monotonic())):
        raise CheckFailed(f"{name} was not done after {deadline_s:.0f} s")
    try:
        answer, error = receiver.recv()
    except EOFError:
        raise CheckFailed(f"the process of {name} ended without an answer") from None
    if error is not None:
        raise error
    return answer


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # vLLM writes its messages there
    try:
        sender.send((function(*args), None))
    except (CheckFailed, CheckSkipped) as error:
        sender.send((None, error))
    except Exception as error:  # noqa: BLE001 - whatever a part raises is what the check found
        sender.send((None, CheckFailed(f"{type(error).__name__}: {first_line(error)}")))


def _end(process: multiprocessing.process.BaseProcess, grace_s: float) -> None:
    """Of a process and all that it started, which have ``grace_s`` to end by themselves."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    process.join(grace_s)
    if process.is_alive():
        process.kill()
        process.join(END_S)
    _, left = psutil.wait_procs(started, timeout=grace_s)
    for member in left:
        with suppress(psutil.NoSuchProcess):
            member.kill()
