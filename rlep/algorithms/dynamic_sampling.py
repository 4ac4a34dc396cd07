"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): drop groups without signal and refill, within a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlep.core.types import Group


def keep_group(group: Group, k: int = 1) -> bool:
    """Tell whether a group's verdicts differ: correct and not, or in their scores. The overlong penalty plays no part.

    ``k`` of the pass@k advantage: where fewer than k are wrong, each k of them have a correct one, and nothing differs.
    """
    wrong = sum(not member.correct for member in group.members)
    return len({member.verdict.credit for member in group.members}) > 1 and (k == 1 or wrong >= k)


@dataclass(frozen=True, slots=True)
class RefillReport:
    """Counts of dynamic sampling in a step so far; reports add up."""

    rounds: int = 0
    kept: int = 0
    all_correct: int = 0
    """Groups dropped because every verdict was correct, or each k of them have a correct one."""
    all_wrong: int = 0
    """Groups dropped because none was, and their scores, where they have any, are equal."""

    @classmethod
    def of(cls, groups: Sequence[Group], k: int = 1) -> RefillReport:
        """The report of one round."""
        dropped = [group for group in groups if not keep_group(group, k)]
        correct = sum(any(member.correct for member in group.members) for group in dropped)
        return cls(1, len(groups) - len(dropped), correct, len(dropped) - correct)

    def __add__(self, other: RefillReport) -> RefillReport:
        return RefillReport(
            self.rounds + other.rounds,
            self.kept + other.kept,
            self.all_correct + other.all_correct,
            self.all_wrong + other.all_wrong,
        )

    @property
    def sampled(self) -> int:
        """Prompts sampled, kept or not."""
        return self.kept + self.all_correct + self.all_wrong


@dataclass(frozen=True, slots=True)
class Refill:
    """Target of dynamic sampling in groups, and the bound at which it stops trying."""

    target: int
    """Groups with signal that the step trains on."""
    limit: int
    """A step samples at most this many times ``target`` prompts."""
    prompts_per_update: int
    """A step that falls short trains on a multiple of this."""

    @property
    def max_prompts(self) -> int:
        """Most prompts sampled in one step, the first ``target`` included."""
        return self.limit * self.target

    def ask(self, report: RefillReport) -> int:
        """Return the number of prompts to sample now: enough at the share kept so far (at least 1/4); 0 to stop."""
        missing = max(0, self.target - report.kept)
        share = max(report.kept / report.sampled, 0.25) if report.sampled else 1.0
        return min(math.ceil(missing / share), max(0, self.max_prompts - report.sampled))

    def usable(self, report: RefillReport) -> int:
        """Return the number of kept groups, first asked first, that the step trains on: whole updates only."""
        return min(report.kept, self.target) // self.prompts_per_update * self.prompts_per_update

    def exhausted(self, report: RefillReport) -> bool:
        """Tell whether the bound was hit before the target."""
        return report.kept < self.target and report.sampled >= self.max_prompts

    def describe(self, report: RefillReport) -> str:
        """One sentence for the log, with the fix where the bound was hit."""
        text = (
            f"dynamic sampling kept {report.kept} of {report.sampled} groups in {report.rounds} rounds"
            f" ({report.all_correct} all correct, {report.all_wrong} all wrong), wanted {self.target}"
        )
        if not self.exhausted(report):
            return text
        return (
            f"{text}; stopped by rollout.refill_limit = {self.limit} and trains on {self.usable(report)}: raise it, "
            "take questions that the model solves sometimes, or lower rollout.prompts"
        )
