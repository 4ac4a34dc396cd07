"""The mathematical verifier: extraction and the exact path in this process, everything else in killable ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rlep.config.roles import MathProfile
from rlep.core.types import Status, Verdict
from rlep.core.versions import check_installed
from rlep.services.verifier import answers, dapo, exact
from rlep.services.verifier.base import BaseVerifier, Pair
from rlep.services.verifier.copied import is_copied
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

_Here = tuple[str, Status | None]
"""``(path, status)`` of a pair as far as this process can tell; status None sends it to a worker."""


class Verifier(BaseVerifier):
    """Grades responses to mathematical questions; ``docs/reference/verifier.md`` says how.

    Callable from any thread, as it uses no signals in this process. Equal answers to one reference are compared once
    per call.
    """

    self_test = (
        ("12", r"\boxed{12} Answer: 12", "correct"),
        (r"\sqrt{2}+1", r"\boxed{1+\sqrt{2}} Answer: \sqrt{2}+1", "correct"),  # the math profiles ask a worker
        (r"\sqrt{2}+1", r"\boxed{2+\sqrt{2}} Answer: \sqrt{2}+2", "wrong"),
    )

    def __init__(self, profile: MathProfile = "math", *, workers: int = 1, limits: Limits | None = None) -> None:
        """``workers`` processes are started at once and are ready a second or two later; ``dapo`` needs none."""
        if profile != "dapo":
            check_installed("math_verify")
        pool = None if profile == "dapo" else WorkerPool("math", limits or Limits(), workers)
        super().__init__(profile, pool=pool)
        self._profile: MathProfile = profile

    def reference_fault(self, reference: str) -> str:
        """Why a reference is a solution without a stated answer; empty where it has one."""
        return "" if self._profile == "dapo" else answers.reference_fault(reference)

    def stated(self, reference: str) -> Sequence[str]:
        """The reference's answer in the form of the profile; also the reference whole, which may have a box itself."""
        if self._profile == "dapo":
            return [f"Answer: {reference}"]
        return [f"\\boxed{{{answers.reference_of(reference)}}}", reference]

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts: list[Verdict | None] = []
        waiting: dict[GradingJob, list[int]] = {}
        references: dict[str, str] = {}
        known: dict[tuple[str, str, str], _Here] = {}
        for index, (raw, text, truncated, asked) in enumerate(pairs):
            started = time.perf_counter()
            reference = references.get(raw)
            if reference is None:
                reference = references[raw] = self._reference_of(raw)
            answer = self._answer_of(text, truncated)
            if (
                answer is not None
                and reference.endswith("%")
                and not answer.endswith("%")
                and answers.percent_behind_box(text)
            ):
                answer += "\\%"
            key = reference, answer or "", asked.prompt
            here = known.get(key)
            if here is None:
                here = known[key] = self._decide_here(reference, answer, asked.prompt)
            path, status = here
            if status is None and answer is not None:
                waiting.setdefault(GradingJob(reference, answer), []).append(index)
                verdicts.append(None)
            else:
                seconds = time.perf_counter() - started
                verdicts.append(Verdict(status or "no_answer", answer, self._profile, self.version, path, seconds))
        self._ask_workers(waiting, verdicts)
        return [verdict for verdict in verdicts if verdict is not None]

    def _ask_workers(self, waiting: dict[GradingJob, list[int]], verdicts: list[Verdict | None]) -> None:
        """Fill in the verdicts that this process could not give."""
        if not waiting or self._pool is None:
            return
        for job, reply in zip(waiting, self._pool.grade(list(waiting)), strict=True):
            for index in waiting[job]:
                verdicts[index] = Verdict(reply.status, job.answer, self._profile, self.version, "full", reply.seconds)

    def _reference_of(self, raw: str) -> str:
        return dapo.normalise(raw) if self._profile == "dapo" else answers.reference_of(raw)

    def _answer_of(self, text: str, truncated: bool) -> str | None:
        if self._profile == "dapo":
            return dapo.answer_of(text)
        return answers.answer_of(text, truncated=truncated, profile=self._profile)

    def _decide_here(self, reference: str, answer: str | None, question: str) -> _Here:
        if answer is None:
            return "fast", "no_answer"
        if self._profile == "dapo":
            return "fast", "correct" if answer == reference else "wrong"
        status: Status | None = exact.decide(reference, answer)
        if status is not None:
            return "fast", status
        if answers.is_too_large(reference, answer):
            return "gate", "unparsable"
        return "gate", "wrong" if is_copied(answer, question, reference) else None
