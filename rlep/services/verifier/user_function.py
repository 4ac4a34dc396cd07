"""The user's own function as a verifier, in the same killable processes as the symbolic engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rlep.errors import ConfigError
from rlep.services.verifier.jail import Limits
from rlep.services.verifier.pool import WorkerPool
from rlep.services.verifier.stats import GradingStats, StatsRecorder
from rlep.services.verifier.supervisor import Job
from rlep.types import Verdict

VERSION = "1"


class FunctionVerifier:
    """Calls ``function(reference, response)``, which answers ``True``, ``False``, or ``(bool, extracted)``.

    Anything but ``True`` is ``wrong``; an exception is ``crashed``. The function may be slow, may crash or loop for
    ever: it has the limits of every worker, no network, no threads and no child processes. Truncated responses are
    ``no_answer`` and not shown to it.
    """

    def __init__(self, function: str, *, workers: int = 1, limits: Limits | None = None) -> None:
        """``function``: ``module:name``, importable here. Raises ConfigError for anything else."""
        module, _, name = function.partition(":")
        if not module or not name.isidentifier():
            raise ConfigError(f"verifier function {function!r} is not of the form module:function")
        self._name = f"python:{function}"
        self._pool = WorkerPool(function, limits or Limits(), workers)
        self._recorder = StatsRecorder()

    @property
    def name(self) -> str:
        """``python:module:function``."""
        return self._name

    @property
    def version(self) -> str:
        """The version of the way it is called, not of the user's code."""
        return VERSION

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool]) -> list[Verdict]:
        """One verdict per text, in order. Raises VerifierError when the function cannot be imported."""
        return self.grade_pairs([(reference, text, cut) for text, cut in zip(texts, truncated, strict=True)])

    def grade_pairs(self, pairs: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """One verdict per ``(reference, text, truncated)``, in order."""
        jobs = [Job(reference, text) for reference, text, truncated in pairs if not truncated]
        replies = iter(self._pool.grade(jobs))
        verdicts = []
        for _, _, truncated in pairs:
            if truncated:
                verdicts.append(Verdict("no_answer", None, self._name, VERSION, "fast"))
            else:
                reply = next(replies)
                verdicts.append(Verdict(reply.status, reply.extracted, self._name, VERSION, "full", reply.seconds))
        self._recorder.add(verdicts)
        return verdicts

    def stats(self) -> GradingStats:
        """Counters and latencies since this verifier was made."""
        return self._recorder.snapshot(self._pool.restarts)

    def close(self) -> None:
        """End every process this verifier started. Idempotent."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
