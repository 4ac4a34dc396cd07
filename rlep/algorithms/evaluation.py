"""Evaluation statistics over questions: avg@n, maj@n, best@n and unbiased pass@k, each with a confidence interval.

Every statistic is a mean over questions of one number per question, so samples of a question are never counted as
independent evidence. ``stderr`` is the standard error clustered by question, sd(per question, ddof=1)/√Q; ``low`` and
``high`` are the ends of the 95 % percentile bootstrap over questions (2,000 resamples, drawn at the seed's address).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlep.algorithms.rollout_stats import part_means
from rlep.core.errors import DataError
from rlep.core.seeds import generator_for
from rlep.core.types import BoolArray, Float64Array, Int64Array

INTERVAL = "95% percentile bootstrap over questions, 2000 resamples"
RESAMPLES = 2000
ALL = "all"
"""The name of the row over every question, added when there are several data sources."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Verdicts on the n samples of one held-out question."""

    prompt_id: str
    data_source: str
    correct: BoolArray
    """``[n]``: whether each sample's verdict is ``correct``."""
    answers: tuple[str | None, ...]
    """The extracted answer of each sample, n of them; None where there was none."""
    scores: tuple[float, ...] | None = None
    """Partial credit of each sample, n of them; None, of all questions, where the verifier gives no scores."""
    parts: tuple[Mapping[str, float], ...] = ()
    """The named parts of each sample's score."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions. Without at least two questions there is no ``stderr``, ``low`` and ``high``."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None

    @property
    def interval(self) -> list[float] | None:
        """``[low, high]``, or None."""
        return None if self.low is None or self.high is None else [self.low, self.high]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The statistics of one data source."""

    data_source: str
    questions: int
    samples: int
    """n, samples per question."""
    answered: float
    """Share of samples with an extracted answer."""
    avg: Estimate
    maj: Estimate
    best: Estimate
    passes: Mapping[int, Estimate]
    """Unbiased pass@k by k."""
    score: Estimate | None = None
    """Mean partial credit; None where the verifier gives no scores."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Mean of each named part of the scores, over the samples that have it."""

    def to_json(self) -> dict[str, object]:
        """The row as it stands in ``evaluations.jsonl``."""
        row: dict[str, object] = {
            "data_source": self.data_source,
            "questions": self.questions,
            "n": self.samples,
            "answered": self.answered,
            "avg": self.avg.value,
            "stderr": self.avg.stderr,
            "ci": self.avg.interval,
            "maj": self.maj.value,
            "maj_ci": self.maj.interval,
            "best": self.best.value,
            "best_ci": self.best.interval,
            "pass": {str(k): estimate.value for k, estimate in self.passes.items()},
            "pass_ci": {str(k): estimate.interval for k, estimate in self.passes.items()},
            "interval": INTERVAL,
        }
        if self.score is not None:
            row |= {"score": self.score.value, "score_ci": self.score.interval, "parts": dict(self.parts)}
        return row

    def cells(self) -> dict[str, str]:
        """The row for a table: column title to text, in per cent."""
        shown = {f"avg@{self.samples}": self.avg, f"maj@{self.samples}": self.maj, f"best@{self.samples}": self.best}
        shown |= {f"pass@{k}": estimate for k, estimate in self.passes.items() if 1 < k < self.samples}
        if self.score is not None:
            shown["score"] = self.score
        counts = {"data source": self.data_source, "questions": str(self.questions)}
        return counts | {title: _percent(estimate) for title, estimate in shown.items()}


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One evaluation: a row per data source, and a last row ``all`` when there are several."""

    sources: tuple[SourceReport, ...]

    def to_json(self) -> list[dict[str, object]]:
        """One object per row."""
        return [source.to_json() for source in self.sources]

    def table(self) -> list[dict[str, str]]:
        """One mapping of column title to text per row; all rows have the same columns."""
        return [source.cells() for source in self.sources]


def evaluate(questions: Sequence[Question], *, seed: int) -> EvaluationReport:
    """Statistics of all questions, by data source in order of appearance. DataError unless all have the same n ≥ 1."""
    samples = _samples_of(questions)
    names = list(dict.fromkeys(question.data_source for question in questions))
    rows = [([q for q in questions if q.data_source == name], name) for name in names]
    if len(names) > 1:
        rows = [(members, f"{ALL} (data source)" if name == ALL else name) for members, name in rows]
        rows.append((list(questions), ALL))
    return EvaluationReport(tuple(_source_report(members, name, samples, seed=seed) for members, name in rows))


def majority_correct(correct: BoolArray, answers: Sequence[str | None]) -> bool:
    """Tell whether the most frequent extracted answer of one question is correct.

    None never wins. Ties go to the answer that appears first. Answers are compared as the extractor gives them, so
    ``1/2`` and ``0.5`` vote apart. The winner is correct when any of its samples was found correct: a sample may be
    judged otherwise only because it was cut or its verification ran out of time.
    """
    votes: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    if not votes:
        return False
    winner = max(votes, key=votes.__getitem__)  # the first of the largest: dicts keep the order of appearance
    return any(ok for ok, answer in zip(correct, answers, strict=True) if answer == winner)


def pass_at_k(successes: Int64Array, samples: int, k: int) -> Float64Array:
    """Unbiased pass@k per question, ``[Q]``: 1 − C(n−c, k)/C(n, k), for c ``successes`` ``[Q]`` of n ``samples``.

    As the product of (n−c−i)/(n−i) for i < k (Chen et al. 2021, arXiv 2107.03374): no large binomials, exact 0 at c = 0
    and exact 1 where n − c < k. ValueError unless 1 ≤ k ≤ n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 1 <= k <= {samples} samples, got k = {k}")
    drawn = np.arange(k)
    failures = np.clip(samples - successes[:, None] - drawn, 0, None)  # [Q, k]
    return np.asarray(1.0 - np.prod(failures / (samples - drawn), axis=1))


def ks_for(samples: int) -> tuple[int, ...]:
    """The k reported for n samples: powers of two below n, and n."""
    return (*(2**i for i in range(samples.bit_length()) if 2**i < samples), samples)


def estimates(values: Float64Array, *, seed: int, address: str) -> list[Estimate]:
    """The mean over questions of each column of ``values`` ``[Q, C]``, all columns on the same resamples."""
    means = values.mean(axis=0)
    count = len(values)
    if count < 2:
        return [Estimate(float(mean), None, None, None) for mean in means]
    stderr = values.std(axis=0, ddof=1) / np.sqrt(count)
    draw = generator_for(seed, "evaluation", "bootstrap", address)
    resampled = np.array([values[draw.integers(count, size=count)].mean(axis=0) for _ in range(RESAMPLES)])  # [B, C]
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return [Estimate(*map(float, column)) for column in zip(means, stderr, low, high, strict=True)]


def paired(left: Float64Array, right: Float64Array, *, address: str, seed: int = 0) -> Estimate:
    """``left`` minus ``right``, two policies' numbers ``[Q]`` of the same questions, in the same order.

    What is hard about a question is hard for both and cancels; two intervals beside each other count it twice.
    """
    if left.shape != right.shape:
        raise ValueError(f"{len(left)} and {len(right)} questions cannot be compared in pairs")
    return estimates((left - right)[:, None], seed=seed, address=address)[0]


def _source_report(questions: Sequence[Question], name: str, samples: int, *, seed: int) -> SourceReport:
    correct = np.array([question.correct for question in questions], dtype=bool)  # [Q, n]
    successes = correct.sum(axis=1)
    ks = ks_for(samples)
    columns = [
        correct.mean(axis=1),
        np.array([majority_correct(q.correct, q.answers) for q in questions], dtype=np.float64),
        correct.any(axis=1).astype(np.float64),
        *(pass_at_k(successes, samples, k) for k in ks),
    ]
    scores = [float(np.mean(question.scores)) for question in questions if question.scores is not None]
    if scores:
        columns.append(np.array(scores, dtype=np.float64))
    avg, maj, best, *others = estimates(np.stack(columns, axis=1), seed=seed, address=name)
    answered = float(np.mean([answer is not None for question in questions for answer in question.answers]))
    by_k = dict(zip(ks, others[: len(ks)], strict=True))
    score = others[len(ks)] if scores else None
    parts = part_means([one for question in questions for one in question.parts])
    return SourceReport(name, len(questions), samples, answered, avg, maj, best, by_k, score, parts)


def _samples_of(questions: Sequence[Question]) -> int:
    if not questions:
        raise DataError("nothing to evaluate: no question has any sample")
    samples = len(questions[0].correct)
    for question in questions:
        if len(question.correct) != samples or len(question.answers) != samples or samples == 0:
            raise DataError(
                f"question {question.prompt_id}: {len(question.correct)} verdicts and {len(question.answers)} answers, "
                f"but every question needs {max(samples, 1)} of each"
            )
    return samples


def _percent(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{100 * estimate.value:.1f}"
    low, high = estimate.interval
    return f"{100 * estimate.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
