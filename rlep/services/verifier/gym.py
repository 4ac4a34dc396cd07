"""Profile ``reasoning-gym``: the answer goes to the scorer of the task that made the question, in a worker process."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import metadata

from rlep.core.errors import ConfigError, DataError
from rlep.core.types import Verdict
from rlep.services.verifier.answers import after_thinking
from rlep.services.verifier.base import VERSION, BaseVerifier, Pair
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

NAME = "reasoning-gym"
_SCORER = "rlep.services.verifier.gym_worker:score"
_NO_REFERENCE = "it gives no reference answer"
_TUPLES = "its scorer compares tuples, which JSON does not have"
REFUSED = {
    "arc_agi": _TUPLES,
    "boxnet": _NO_REFERENCE,
    "coin_flip": "its scorer accepts 0",
    "complex_arithmetic": "its scorer accepts nan",
    "composite": "it only mixes other tasks: make these",
    "game_of_life_halting": "its scorer accepts every text where the reference is True",
    "graph_color": _NO_REFERENCE,
    "letter_jumble": "its scorer accepts words after the reference",
    "propositional_logic": _NO_REFERENCE,
    "puzzle24": "its scorer accepts numbers that are not the question's",
    "rearc": _TUPLES,
    "rubiks_cube": _NO_REFERENCE,
    "rush_hour": _NO_REFERENCE,
}
"""Task -> why it is refused: its scorer rejects the task's own reference, or accepts a wrong answer."""

MAX_ANSWER_CHARS = 20_000
"""Longer answers are never scored (``unparsable``)."""
_OPEN, _CLOSED = "<answer>", "</answer>"
_ARITHMETIC = re.compile(r"(?:[\d\s+\-()]|\*(?!\*)|/(?!/))*", re.ASCII)
"""Without points and powers: the scorer of ``countdown`` reads the numbers 9 and 8 in 9.8, and the question allows no power."""
_CALCULUS = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
_OPERATORS = re.compile(r"[\w\s+\-*/().]*", re.ASCII)
_WORDS = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MEMBER = re.compile(r"\.\s*[A-Za-z_]", re.ASCII)
_FUNCTIONS = re.compile(r"a?(sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|pi")


class GymVerifier(BaseVerifier):
    """Scores the text of the last ``<answer>…</answer>``; ``correct`` is a score of 1.0.

    References are entries of reasoning-gym as JSON; ``grade`` raises DataError for any other.
    """

    def __init__(self, *, workers: int = 1, limits: Limits | None = None) -> None:
        """Raises ConfigError where reasoning-gym is not installed."""
        version = f"{VERSION}-{package_version()}"
        super().__init__(NAME, version, WorkerPool(_SCORER, limits or Limits(), workers))

    def reference_fault(self, reference: str) -> str:
        """Why ``reference`` is no entry that can be graded; empty where it is one."""
        return _task_of(reference)[1]

    def stated(self, reference: str) -> Sequence[str]:
        """The entry's own answer."""
        return [f"{_OPEN}{json.loads(reference)['answer']}{_CLOSED}"]

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        assert self._pool is not None
        verdicts: list[Verdict | None] = []
        jobs: list[GradingJob] = []
        tasks: dict[str, str] = {}
        for reference, text, *_ in pairs:
            if reference not in tasks:
                tasks[reference], fault = _task_of(reference)
                if fault:
                    raise DataError(fault)
            answer = answer_of(text)
            if not answer:
                verdicts.append(Verdict("no_answer", None, self.name, self.version, "fast"))
            elif not is_readable(tasks[reference], answer):
                verdicts.append(Verdict("unparsable", answer[:MAX_ANSWER_CHARS], self.name, self.version, "gate"))
            else:
                jobs.append(GradingJob(reference, answer))
                verdicts.append(None)
        replies = iter(zip(jobs, self._pool.grade(jobs), strict=True))
        return [verdict or self._verdict(*next(replies)) for verdict in verdicts]

    def _verdict(self, job: GradingJob, reply: Reply) -> Verdict:
        return Verdict(
            reply.status, job.answer, self.name, self.version, "full", reply.seconds, reply.score, reply.parts
        )


def answer_of(text: str) -> str | None:
    """The stripped text of the last ``<answer>…</answer>`` after the last closed think block; None without one."""
    final = after_thinking(text)
    if final is None or (end := final.rfind(_CLOSED)) < 0 or (start := final.rfind(_OPEN, 0, end)) < 0:
        return None
    return final[start + len(_OPEN) :].partition(_CLOSED)[0].strip()


def is_readable(task: str, answer: str) -> bool:
    """Tell whether the task's scorer may see an answer.

    Some scorers hand it to sympy's parser, which runs it as Python; they see numbers and operators and, for calculus,
    one-letter names and elementary functions.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    if task == "countdown":
        return bool(_ARITHMETIC.fullmatch(answer))
    if task in _CALCULUS:
        words = _WORDS.findall(answer)
        known = all(re.fullmatch("[A-Za-z]", word) or _FUNCTIONS.fullmatch(word) for word in words)
        return known and bool(_OPERATORS.fullmatch(answer)) and not _MEMBER.search(answer)
    return True


def _task_of(reference: str) -> tuple[str, str]:
    """``(task, fault)`` of a reference; the fault is empty where it is an entry that can be graded."""
    try:
        entry = json.loads(reference)
        task = entry["metadata"]["source_dataset"]
        whole = isinstance(task, str) and isinstance(entry["answer"], str) and isinstance(entry.get("config", {}), dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        return "", "gold is no entry of reasoning-gym as JSON: question, answer, metadata with source_dataset"
    return task, f"task {task} is refused: {REFUSED[task]}" if task in REFUSED else ""


def package_version() -> str:
    """The installed version of reasoning-gym. Raises ConfigError, with the command to run, where there is none."""
    try:
        return metadata.version("reasoning-gym")
    except metadata.PackageNotFoundError:
        raise ConfigError("reasoning-gym is not installed: pip install 'reasoning-gym>=0.1.25,<0.2'") from None
