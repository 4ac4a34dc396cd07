"""Admission of collected responses to the pool, and the pool's coverage afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlep.core.types import Trajectory

Refusal = Literal["not_correct", "truncated", "too_long", "duplicate", "over_cap", "too_few", "quarantined"]


@dataclass(frozen=True, slots=True)
class Admission:
    """Conditions of admission (RLEP, arXiv 2507.07451, section 3.1: verified responses, at least two for a question)."""

    max_length: int = 3072
    """Longest response in tokens, EOS included."""
    min_per_question: int = 2
    """A question with fewer responses in all is left out."""
    max_per_question: int | None = None
    """Most responses kept for a question; None keeps all."""
    failed: bool = False
    """True also admits responses whose verdict is ``wrong`` (the paper's negative ablation)."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of questions by their responses in the pool; reports of disjoint sets of questions add up."""

    answers: Mapping[int, int] = field(default_factory=dict)
    """Number of responses → number of questions that have so many, 0 included."""
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    """Reason → number of trajectories refused for it."""
    accepted: int = 0
    """Trajectories accepted now."""

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            dict(Counter(self.answers) + Counter(other.answers)),
            dict(Counter(self.refused) + Counter(other.refused)),
            self.accepted + other.accepted,
        )

    @property
    def questions(self) -> int:
        """Questions asked."""
        return sum(self.answers.values())

    @property
    def covered(self) -> int:
        """Questions with at least one response in the pool."""
        return self.questions - self.answers.get(0, 0)

    def buckets(self) -> dict[str, int]:
        """Questions with 0, 1, 2–3, 4–7 and 8 or more responses."""
        bounds = {"0": (0, 0), "1": (1, 1), "2-3": (2, 3), "4-7": (4, 7), "8+": (8, max([8, *self.answers]))}
        return {
            name: sum(questions for count, questions in self.answers.items() if low <= count <= high)
            for name, (low, high) in bounds.items()
        }


def admit(
    prompt_ids: Sequence[str],
    trajectories: Sequence[Trajectory],
    options: Admission,
    *,
    known: Mapping[str, Collection[str]] | None = None,
) -> tuple[tuple[Trajectory, ...], Coverage]:
    """Choose among the responses to some questions; the result does not depend on the order they arrived in.

    Over the cap, those with the smallest content ids stay: a hash, so length and speed play no part.

    Args:
        prompt_ids: every question asked, so that those without any response are counted.
        trajectories: all responses to them, of any verdict.
        known: content ids already in the pool by prompt id; they count towards the minimum and the cap.
    """
    by_prompt: dict[str, list[Trajectory]] = {prompt_id: [] for prompt_id in prompt_ids}
    for trajectory in trajectories:
        if trajectory.prompt_id not in by_prompt:
            raise ValueError(f"an answer to prompt {trajectory.prompt_id}, which is not among the questions asked")
        by_prompt[trajectory.prompt_id].append(trajectory)
    accepted: list[Trajectory] = []
    answers, refused = Counter[int](), Counter[Refusal]()
    for prompt_id, answered in by_prompt.items():
        stored = (known or {}).get(prompt_id, ())
        chosen = _admit_question(answered, frozenset(stored), options, refused)
        accepted.extend(chosen)
        answers[len(stored) + len(chosen)] += 1
    return tuple(accepted), Coverage(dict(answers), dict(+refused), len(accepted))


def refusal(trajectory: Trajectory, options: Admission) -> Refusal | None:
    """Why a trajectory may not enter, looked at alone."""
    if not (trajectory.correct or (options.failed and trajectory.verdict.status == "wrong")):
        return "not_correct"
    if trajectory.finish_reason != "stop":
        return "truncated"
    return "too_long" if len(trajectory.tokens) > options.max_length else None


def _admit_question(
    answered: Sequence[Trajectory], stored: frozenset[str], options: Admission, refused: Counter[Refusal]
) -> list[Trajectory]:
    distinct: dict[str, Trajectory] = {}
    for trajectory in answered:
        reason = refusal(trajectory, options)
        identity = trajectory.content_id
        if reason is None and (identity in stored or identity in distinct):
            reason = "duplicate"
        if reason is None:
            distinct[identity] = trajectory
        else:
            refused[reason] += 1
    if len(stored) + len(distinct) < options.min_per_question:
        refused["too_few"] += len(distinct)
        return []
    room = len(distinct) if options.max_per_question is None else max(0, options.max_per_question - len(stored))
    chosen = sorted(distinct)[:room]
    refused["over_cap"] += len(distinct) - len(chosen)
    return [distinct[identity] for identity in chosen]
