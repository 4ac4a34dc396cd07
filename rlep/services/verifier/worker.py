"""The process that grades, in the runner that its host forks.

Run as ``python -m rlep.services.verifier.worker PARENT_PID TASK LIMITS_JSON``.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rlep.core.errors import VerifierError
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.judge import JUDGE, judge_function, read_judge
from rlep.services.verifier.judgement import Judge, Judgement
from rlep.services.verifier.reward_call import Term, judge_of, user_judge
from rlep.services.worker import frames
from rlep.services.worker.failure import MAX_REASON, failure_of
from rlep.services.worker.host import OUT_OF_STEP, RECYCLED, Life, main, write
from rlep.services.worker.jail import Limits, confine, memory_mb, start_clock, stop_clock

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


Grade = Callable[[GradingJob], Judgement]
Run = Callable[[Coroutine[Any, Any, Judgement]], Judgement]
Grader = Callable[[Sequence[GradingJob], int, float], bool]
"""Answers the jobs of a batch, at most that many at once, the first with at least so many seconds of CPU time.

False if the process is of no more use after it.
"""

_STACK_BYTES = 2 << 20
"""Of a thread with the network: as many as may be have room in the address space."""


def prepare(task: str, limits: Limits, jobs: int, replies: int) -> Life:
    """Import the judge of a task."""
    judge = load_judge(task, threads=limits.network)

    def life() -> int:
        grade = _grader(judge, limits, partial(write, replies))
        confine(limits)
        return serve(grade, limits, jobs, replies)

    return life


def load_judge(task: str, *, threads: bool = False) -> Judge:
    """``math``, a judge's file, or the user's ``module:function``, imported.

    The engine of ``math`` is warmed up: each part of its first use is slow.

    Raises VerifierError where the engine grades a known answer wrongly.
    """
    if task == "math":
        grading = importlib.import_module("rlep.services.verifier.grading")

        async def judge(job: GradingJob) -> Judgement:
            return Judgement(grading.judge(job.reference, job.answer), None)

        for reference, answer, wanted in _WARM_UP:
            random.seed(0)
            found = finish(judge(GradingJob(reference, answer))).status
            if found != wanted:
                raise VerifierError(
                    f"it grades the answer {answer} to {reference} as {found}, which is {wanted}; reinstall "
                    "math-verify, latex2sympy2-extended and sympy in the versions that rlep's package names"
                )
        return Judge(judge)
    if task.startswith(JUDGE):
        return judge_of((Term("judge"),), [judge_function(read_judge(Path(task.removeprefix(JUDGE))))])
    return user_judge(task, threads=threads)


def finish(judging: Coroutine[Any, Any, Judgement]) -> Judgement:
    """Run a judge that waits for nothing, without an event loop: the limits allow none to be made."""
    try:
        judging.send(None)
    except StopIteration as ended:
        found: Judgement = ended.value
        return found
    raise RuntimeError("a judge that is not async waits for something")


def _grader(judge: Judge, limits: Limits, answer: Callable[[Any], None]) -> Grader:
    """The way in which a runner with these limits answers the jobs of a batch: in turn, or with the network several at once."""
    run: Run = finish
    if judge.is_async or limits.network:
        runner = asyncio.Runner()
        runner.get_loop()  # it has a pair of sockets, which the limits may refuse from here on
        run = runner.run
    if limits.network:
        from rlep.services.verifier.at_once import MOST_THREADS, ServerAway, grade_all

        threading.stack_size(_STACK_BYTES)
        runner.get_loop().set_default_executor(ThreadPoolExecutor(MOST_THREADS))

        def grade_at_once(jobs: Sequence[GradingJob], at_once: int, first_seconds: float) -> bool:
            start_clock(max(limits.cpu_seconds, first_seconds) + limits.cpu_seconds * (len(jobs) - 1))
            try:
                return not runner.run(grade_all(judge, limits, jobs, at_once, answer))
            except ServerAway as away:
                answer({"away": str(away)[:MAX_REASON]})
                return False
            finally:
                stop_clock()

        return grade_at_once

    def grade_in_turn(jobs: Sequence[GradingJob], _: int, first_seconds: float) -> bool:
        seconds = max(limits.cpu_seconds, first_seconds)
        for job in jobs:
            answer(_grade_one(lambda job: run(judge.judge(job)), seconds, job))
            seconds = limits.cpu_seconds
        return True

    return grade_in_turn


def serve(grade: Grader, limits: Limits, jobs: int, replies: int) -> int:
    """Grade batches until it is time to be replaced; the exit code."""
    done, largest = 0, memory_mb().resident + limits.recycle_mb
    while done < limits.recycle_jobs and memory_mb().resident < largest:
        batch: Any = frames.read_blocking(jobs)
        if batch is None:
            return OUT_OF_STEP
        write(replies, {"batch": batch["batch"], "first": not done})
        jobs_of_batch = [GradingJob(*job) for job in batch["jobs"]]
        if not grade(jobs_of_batch, batch["at_once"], 0.0 if done else batch["first_seconds"]):
            break
        done += len(batch["jobs"])
    return RECYCLED


def _grade_one(judge: Grade, cpu_seconds: float, job: GradingJob) -> list[Any]:
    """``[status, extracted, seconds, failure]``, and of a score also ``[…, score, parts]``. Raises MemoryError."""
    random.seed(0)  # whatever a judge draws, equal jobs must see equal draws
    started = time.perf_counter()
    start_clock(cpu_seconds)
    try:
        found = judge(job)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job, whatever the user's function raised
        found = Judgement("crashed", None, failure_of(error, "verifier"))
    finally:
        stop_clock()
    return found.reply(time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prepare))
