"""Base of every verifier: a name and a version for its verdicts, and the processes it must end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

from rlep.core.errors import ConfigError, VerifierError
from rlep.core.types import NOT_ASKED, Asked, Status, Verdict
from rlep.services.verifier.worker_pool import WorkerPool

VERSION = "7"
"""Raised whenever a verdict of rlep's own verifiers may change."""


class Pair(NamedTuple):
    """One response and its reference."""

    reference: str
    text: str
    truncated: bool
    asked: Asked = NOT_ASKED


class BaseVerifier(ABC):
    """Reads responses against a reference and says what it found. Thread-safe; close it or use it as a context manager."""

    self_test: tuple[tuple[str, str, Status], ...] = ()
    """Reference, response, and the status that ``check`` expects."""

    asks = False
    """It may ask for the question, and for the columns of its row."""

    def __init__(self, name: str, version: str = VERSION, pool: WorkerPool | None = None) -> None:
        self.name = name
        """Name of the verifier, e.g. ``math``; stored with each verdict."""
        self.version = version
        """Changes whenever a verdict may; stored with each verdict."""
        self._mark, self._pool = "", pool

    def grade(
        self, reference: str, texts: Sequence[str], truncated: Sequence[bool], asked: Asked = NOT_ASKED
    ) -> list[Verdict]:
        """One verdict per text, ``[len(texts)]``. Raises VerifierError when processes cannot be started."""
        return self.grade_pairs([(reference, text, cut, asked) for text, cut in zip(texts, truncated, strict=True)])

    def grade_pairs(self, pairs: Sequence[tuple[str, str, bool] | tuple[str, str, bool, Asked]]) -> list[Verdict]:
        """One verdict per pair, ``[len(pairs)]``, in order."""
        read = [Pair(*pair) for pair in pairs]
        return self._verdicts_after(self._mark, read) if self._mark else self._verdicts(read)

    def _verdicts_after(self, mark: str, pairs: Sequence[Pair]) -> list[Verdict]:
        after = [pair._replace(text=pair.text.rpartition(mark)[2]) for pair in pairs if mark in pair.text]
        verdicts = iter(self._verdicts(after))
        without = Verdict("no_answer", None, self.name, self.version, "fast")
        return [next(verdicts) if mark in pair.text else without for pair in pairs]

    def respond(self, answer: str) -> str:
        """Return the response that gives ``answer`` at once, where it is graded."""
        return self._mark + answer

    def read_after(self, mark: str) -> None:
        """Grade only the text after the last ``mark`` from now on; a response without it is ``no_answer``."""
        self._mark, self.version = mark, f"{self.version}-after-{mark}"

    def reference_fault(self, reference: str) -> str:
        """Why this verifier cannot grade against ``reference``; empty where it can, as most can against any text."""
        return ""

    def stated(self, reference: str) -> Sequence[str]:
        """Responses that give ``reference`` itself as the answer, of which one should be paid; none if its form is unknown."""
        return ()

    def check(self) -> None:
        """Raise ConfigError if its processes cannot serve, or if a response of ``self_test`` gets another status.

        Its processes cannot serve, for instance, if the user's function cannot be imported.
        """
        try:
            if self._pool is not None:
                self._pool.grade(())
            verdicts = self.grade_pairs(
                [(reference, self.respond(text), False) for reference, text, _ in self.self_test]
            )
        except VerifierError as error:
            raise ConfigError(str(error)) from None
        for (reference, response, status), verdict in zip(self.self_test, verdicts, strict=True):
            if verdict.status != status:
                reason = f": {verdict.reason}" if verdict.reason else ""
                remedy = "; raise verifier.cpu_seconds" if verdict.status == "timeout" else ""
                raise ConfigError(
                    f"its self-test fails: for the reference {reference!r}, the response {response!r} is "
                    f"{verdict.status}{reason}, it should be {status}{remedy}"
                )

    @abstractmethod
    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Grade the pairs for ``grade_pairs``."""

    def close(self) -> None:
        """End every process this verifier started. Idempotent."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
