"""Runs the phases of a study as commands, so many arms at a time; what is complete is not run again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import Protocol

from rlep.study.study_plan import PhasePlan, Replicate
from rlep.study.study_results import taken_by
from rlep.view.state import complete_mark

STOP_S = 600.0
"""For a command that is interrupted to write its checkpoint."""
POLL_S = 1.0
"""Seconds between two looks at a command's compute."""
COMMAND = """
import ctypes, runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the study with it ignored
ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG: interrupted where the study is killed
runpy.run_module("rlep", run_name="__main__", alter_sys=True)
"""
Pipeline = tuple[str, Replicate]
"""Arm and seed, or base and seed."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an arm has no result under a seed."""

    phase: str
    reason: str


class Commands:
    """``rlep`` in processes of its own; those at work are ended with this process's work."""

    def __init__(self, hours: float, grid: Sequence[float] = (), program: Sequence[str] = ("-c", COMMAND)) -> None:
        """``hours``: longest time of one command; ``grid``: an arm's compute to evaluate its last phase at, the budget last.

        ``program``: Python's arguments, which take a command's words as ``rlep`` does.
        """
        self._seconds, self._grid, self._program = hours * 3600, grid, program
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def __call__(self, plan: PhasePlan, limit: float) -> str:
        """Run one phase; the reason where it fails, else nothing."""
        if taken_by(plan) > limit:
            return ""
        log = plan.directory.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, *self._program, plan.command, *map(str, plan.files), "--quiet"]
        overrides = [*plan.overrides]
        if self._grid and limit < inf:
            marks = [limit - (self._grid[-1] - mark) for mark in self._grid]  # of the phase's own compute
            overrides.append(f"evaluation.compute={[mark for mark in marks if mark > 0]}")
        words += [word for one in overrides for word in ("--set", one)]
        with log.open("ab") as output:
            with self._lock:
                if self._ended:
                    return "interrupted"
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                self._running.add(process)
            try:
                ended = self._wait(process, plan, limit)
            finally:
                with self._lock:
                    self._running.discard(process)
        if ended is not None:
            return ended and f"{ended}; see {log}"
        if (code := process.returncode) == 0:
            return ""
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"exit code {code}, {log}: {lines[-1] if lines else 'no output'}"

    def _wait(self, process: subprocess.Popen[bytes], plan: PhasePlan, limit: float) -> str | None:
        """Wait for the command's end: None if by itself, "" if it was stopped at ``limit``, else why it was stopped."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if taken_by(plan) > limit:
                    _interrupt(process)
                    return ""
            else:
                return None
        _interrupt(process)
        return f"not complete after {self._seconds / 3600:g} hours (study.phase_hours)"

    def stop(self) -> None:
        """Have every command at work stop as by Ctrl-C: it writes a checkpoint and is continued the next time."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """As by Ctrl-C; killed where that does not end it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class PhaseRunner(Protocol):
    """Runs phases."""

    def __call__(self, plan: PhasePlan, limit: float) -> str:
        """Run one phase to its end, or until it has taken more compute than ``limit``; the reason where it fails."""
        ...

    def stop(self) -> None:
        """End those at work soon, and begin no other."""
        ...


def run_pipelines(
    pipelines: Mapping[Pipeline, Sequence[PhasePlan]], run: PhaseRunner, *, budget: float, parallel: int, say: Say
) -> dict[Pipeline, Failed]:
    """Run every arm under every seed, ``parallel`` at a time; returns those that failed. Equal phases run once.

    An arm's last phase ends where the arm has taken ``budget``.
    """
    locks = {plan.directory: threading.Lock() for plans in pipelines.values() for plan in plans}
    failed: dict[Pipeline, Failed] = {}

    def work(pipeline: Pipeline) -> None:
        arm, seed = pipeline
        *before, last = pipelines[pipeline]
        for plan in (*before, last):
            with locks[plan.directory]:
                if complete_mark(plan.directory).exists():
                    continue
                say(f"{arm}, seed {seed}: {plan.command} in {plan.directory}")
                taken = sum(taken_by(one) for one in before if one.charged) if plan is last else -inf
                if taken >= budget:
                    reason = f"its earlier phases take {taken:,.0f} of a budget of {budget:,.0f}"
                else:
                    reason = run(plan, budget - taken)
                if reason:
                    failed[pipeline] = Failed(plan.command, reason)
                    say(f"{arm}, seed {seed}: {plan.command} failed: {reason}")
                    return
                complete_mark(plan.directory).write_text("")

    with ThreadPoolExecutor(parallel, thread_name_prefix="study") as threads:
        begun = [threads.submit(work, pipeline) for pipeline in pipelines]
        try:
            for one in begun:
                one.result()
        except BaseException:  # also Ctrl-C
            run.stop()
            for one in begun:
                one.cancel()
            raise
    return failed
