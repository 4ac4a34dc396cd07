"""Runs the phases of a study as commands, so many arms at a time; what is complete is not run again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlep.study.study_plan import PhasePlan

STOP_S = 600.0
"""For a command that is interrupted to write its checkpoint."""
Pipeline = tuple[str, int]
"""Arm and seed."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an arm has no result under a seed."""

    phase: str
    reason: str


class Commands:
    """``rlep`` in processes of its own; those at work are ended with this process's work."""

    def __init__(self, hours: float) -> None:
        """``hours``: longest time of one command."""
        self._seconds = hours * 3600
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def __call__(self, plan: PhasePlan) -> str:
        """Run one phase; the reason where it fails, else nothing."""
        log = plan.directory.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "rlep", plan.command, *map(str, plan.files), "--quiet"]
        words += [word for one in plan.overrides for word in ("--set", one)]
        with log.open("ab") as output:
            with self._lock:
                if self._ended:
                    return "interrupted"
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                self._running.add(process)
            try:
                code = process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return f"not complete after {self._seconds / 3600:g} hours (study.phase_hours); see {log}"
            finally:
                with self._lock:
                    self._running.discard(process)
        if code == 0:
            return ""
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"exit code {code}, {log}: {lines[-1] if lines else 'no output'}"

    def stop(self) -> None:
        """Have every command at work stop as by Ctrl-C: it writes a checkpoint and is continued the next time."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


class PhaseRunner(Protocol):
    """Runs phases."""

    def __call__(self, plan: PhasePlan) -> str:
        """Run one phase to its end; the reason where it fails, else nothing."""
        ...

    def stop(self) -> None:
        """End those at work soon, and begin no other."""
        ...


def run_pipelines(
    pipelines: Mapping[Pipeline, Sequence[PhasePlan]], run: PhaseRunner, *, parallel: int, say: Say
) -> dict[Pipeline, Failed]:
    """Run every arm under every seed, ``parallel`` at a time; returns those that failed. Equal phases run once."""
    locks = {plan.directory: threading.Lock() for plans in pipelines.values() for plan in plans}
    failed: dict[Pipeline, Failed] = {}

    def work(pipeline: Pipeline) -> None:
        arm, seed = pipeline
        for plan in pipelines[pipeline]:
            with locks[plan.directory]:
                if _complete(plan.directory).exists():
                    continue
                say(f"{arm}, seed {seed}: {plan.command} in {plan.directory}")
                if reason := run(plan):
                    failed[pipeline] = Failed(plan.command, reason)
                    say(f"{arm}, seed {seed}: {plan.command} failed: {reason}")
                    return
                _complete(plan.directory).write_text("")

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


def _complete(directory: Path) -> Path:
    return directory.with_suffix(".complete")
