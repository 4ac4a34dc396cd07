"""Reward functions that fail: the first failure of each kind is reported, and where no response gets a verdict, the work ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rlep.config.roles import FUNCTIONS
from rlep.core.errors import VerifierError
from rlep.core.plural import counted
from rlep.core.types import Completion, Prompt, Verdict
from rlep.driver.ports import Verifiers

UNDECIDED = ("crashed", "timeout", "out_of_memory")
"""Statuses that are about the user's function, not about the response."""
LEAST_QUESTIONS = 2
"""A function may fail on every response to one question, whose reference it cannot read."""

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


def is_function(profile: str) -> bool:
    """Tell whether a profile is the user's own function, or a judge."""
    return profile.startswith(FUNCTIONS)


def check_decided(profile: str, questions: int, verdicts: Sequence[Verdict]) -> None:
    """Raise ``VerifierError`` where the user's function decided on none of the responses that it was shown.

    Truncated ones are not shown. Fewer than ``LEAST_QUESTIONS`` questions say nothing.
    """
    shown = [verdict for verdict in verdicts if verdict.path == "full"]
    counts = Counter[str](verdict.status for verdict in shown)
    if not is_function(profile) or questions < LEAST_QUESTIONS or not shown or {*counts} - {*UNDECIDED}:
        return
    raise VerifierError(
        undecided_text(profile, counts, next((verdict.reason for verdict in shown if verdict.reason), ""))
    )


def undecided_text(profile: str, counts: Mapping[str, int], reason: str) -> str:
    """Describe a function that decided on no response: how many had which status, and why the first crashed."""
    was = ", ".join(f"{count} {status}" for status, count in counts.items())
    first = f"; the first: {reason}" if reason else ""
    return f"{profile} decided on none of {counted(sum(counts.values()), 'response')} ({was}){first}"
