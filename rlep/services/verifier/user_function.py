"""The user's own function as a verifier, in the same killable processes as the symbolic engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlep.core.errors import ConfigError
from rlep.core.types import Verdict
from rlep.services.verifier.base import BaseVerifier, Pair
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.judge import JUDGE, TOKEN, read_judge
from rlep.services.verifier.judgement import MAX_EXTRACTED
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.reward_call import terms_of
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits
from rlep.services.worker.source import source_of


class FunctionVerifier(BaseVerifier):
    """Calls functions with what they ask for by name; each answers with a bool, a score, or ``(either, extracted)``.

    A score is a number in [0, 1], or in the function's ``score_range``, or a mapping of named parts with the score under
    ``score``; ``correct`` where it is at least ``correct_at``, else ``wrong``. Of several functions it is the weighted mean.
    Anything else is ``crashed``, as is an exception. A function may be slow, may crash or loop for ever: it has the limits of
    every worker, no network, no threads and no child processes. Truncated responses are ``no_answer`` and not shown to it.
    """

    asks = True

    def __init__(
        self, profile: str, *, workers: int = 1, limits: Limits | None = None, correct_at: float = 1.0
    ) -> None:
        """``profile``: ``judge:FILE``, or ``python:`` and what ``terms_of`` reads, of modules importable here.

        Raises ConfigError.
        """
        version = profile_version(profile)
        if correct_at != 1.0:
            version += f"-correct-at-{correct_at}"
        self._correct_at = correct_at
        kind, _, argument = profile.partition(":")
        task, limits = argument, limits or Limits()
        if kind == "judge":
            task, limits = f"{JUDGE}{argument}", replace(limits, variables=(TOKEN,))
        super().__init__(profile, version, WorkerPool(task, limits, workers))

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        assert self._pool is not None
        jobs = [GradingJob(pair.reference, pair.text, *pair.asked) for pair in pairs if not pair.truncated]
        replies = iter(self._pool.grade(jobs))
        verdicts = []
        for pair in pairs:
            if pair.truncated:
                verdicts.append(Verdict("no_answer", None, self.name, self.version, "fast"))
            else:
                verdicts.append(self._verdict(next(replies)))
        return verdicts

    def _verdict(self, reply: Reply) -> Verdict:
        status = reply.status
        if reply.score is not None:
            status = "correct" if reply.score >= self._correct_at else "wrong"
        return Verdict(
            status,
            None if reply.extracted is None else reply.extracted[:MAX_EXTRACTED],
            self.name,
            self.version,
            "full",
            reply.seconds,
            reply.score,
            reply.parts,
            reply.failure,
        )


def profile_version(profile: str) -> str:
    """Eight hex digits for ``python:…`` or ``judge:…`` that change whenever a verdict may. Raises ConfigError."""
    kind, _, argument = profile.partition(":")
    return read_judge(Path(argument)).digest if kind == "judge" else source_version(argument)


def source_version(functions: str) -> str:
    """Eight hex digits of the hash of the modules' files and the weights; ConfigError where there is none.

    No module is run.
    """
    try:
        terms = terms_of(functions)
    except ValueError as error:
        raise ConfigError(f"verifier function {error}") from None
    digest = hashlib.blake2b(digest_size=4)
    for term in terms:
        digest.update(source_of(term.function, "verifier function"))
        if len(terms) > 1:
            digest.update(f"{term.function}*{term.weight}".encode())
    return digest.hexdigest()
