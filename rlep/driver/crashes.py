"""Reward functions that fail: the first failure of each kind is reported, and where no response gets a verdict, the work ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rlep.config.roles import FUNCTIONS
from rlep.config.schema import Config
from rlep.core.errors import VerifierError
from rlep.core.plural import counted
from rlep.core.scores import OutOfRange
from rlep.core.types import UNDECIDED, Completion, Prompt, Verdict
from rlep.driver.ports import Verifiers

LEAST_QUESTIONS = 2
"""A function may fail on every response to one question, whose reference it cannot read."""

ENVIRONMENT = "environment.factory = "

Report = Callable[[Prompt, Verdict], None]


class ReportedCrashes:
    """The ``Verifiers`` port, which calls ``report`` with the first crash of each kind."""

    def __init__(self, verifiers: Verifiers, report: Report) -> None:
        self._verifiers, self._report = verifiers, report
        self._known: set[str] = set()

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """Grade, and report the first crash of each kind."""
        verdicts = await self._verifiers.grade(prompt, completions)
        for verdict in verdicts:
            kind = verdict.reason.partition(":")[0]
            if verdict.status == "crashed" and kind not in self._known:
                self._known.add(kind)
                self._report(prompt, verdict)
        return verdicts


def judge_of(config: Config) -> str:
    """Name who decides on a run's responses: their environment, else the verifier's profile."""
    return f"{ENVIRONMENT}{config.environment.factory}" if config.environment.factory else config.verifier.profile


def is_function(profile: str) -> bool:
    """Tell whether a profile is the user's own function, a judge, or the name of an environment."""
    return profile.startswith((*FUNCTIONS, ENVIRONMENT))


def check_decided(profile: str, questions: int, verdicts: Sequence[Verdict]) -> None:
    """Raise ``VerifierError`` with the ``function_fault`` of a rollout. Truncated responses are not shown to a function."""
    shown = [verdict for verdict in verdicts if verdict.path == "full"]
    counts = Counter[str](verdict.status for verdict in shown)
    reasons = [verdict.reason for verdict in shown if verdict.reason]
    if fault := function_fault(profile, counts, reasons, questions):
        raise VerifierError(fault)


def function_fault(
    profile: str, counts: Mapping[str, int], reasons: Sequence[str], questions: int = LEAST_QUESTIONS
) -> str:
    """Describe a user's function that gave a score out of its range, or decided on none of the responses; empty for others.

    ``counts`` and ``reasons``: of the responses that it was shown; fewer than ``LEAST_QUESTIONS`` questions may all fail.
    """
    if not is_function(profile):
        return ""
    if outside := next((reason for reason in reasons if reason.startswith(OutOfRange.__name__)), ""):
        return f"{profile}: {outside}"
    return "" if questions < LEAST_QUESTIONS else undecided_text(profile, counts, next(iter(reasons), ""))


def undecided_text(profile: str, counts: Mapping[str, int], reason: str) -> str:
    """Describe a function that decided on no response, of some: how many had which status, and why the first; else empty."""
    if not counts or {*counts} - {*UNDECIDED}:
        return ""
    was = ", ".join(f"{count} {status}" for status, count in counts.items())
    first = f"; the first: {reason}" if reason else ""
    return f"{profile} decided on none of {counted(sum(counts.values()), 'response')} ({was}){first}"
