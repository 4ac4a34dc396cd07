"""State of a run between two steps: what a checkpoint holds beside the learner's files is this value, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlep.driver.idle import IdleSteps
from rlep.driver.step import StepOutcome
from rlep.metrics.catalogue import MetricValue, compute_of
from rlep.metrics.logs import plain


@dataclass(frozen=True, slots=True)
class RunState:
    """All that a run needs beside the learner to resume exactly: order, draws and seeds follow from ``step``."""

    step: int
    """Steps done; the next step is number ``step``."""
    data_digest: str
    tokenizer_digest: str
    pool_digest: str
    """Content of the pool the replays come from; empty with M = 0."""
    metric: str = ""
    """``checkpoint.best`` when this was written."""
    score: float | None = None
    """Value of ``metric`` at this step, if it has any."""
    used: Mapping[str, int] = field(default_factory=dict)
    """Content id → steps that replayed it; kept only where ``replay.selection`` is ``least-used``."""
    unrecorded: Mapping[str, MetricValue] = field(default_factory=dict)
    """Metrics of the last step until its evaluation is done and its line is written."""
    idle: int = 0
    """Steps in a row that wanted replays, of which none reached the loss."""
    compute: Mapping[str, int] = field(default_factory=dict)
    """Tokens that went through the model so far, by the names of ``tokens_computed``."""
    solved: list[str] = field(default_factory=list)
    """Prompts with a correct fresh response so far, by id, sorted."""
    template_digest: str = ""
    """Of what makes a prompt of a question; empty in a checkpoint of before this was recorded."""
    grader_digest: str = ""
    """Names what decides the rewards; empty in a checkpoint of before this was recorded."""
    untrained: int = 0
    """Steps in a row without an update that had a gradient."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """State of the replay method, as JSON values."""
    evaluated: int = 0
    """Points of ``evaluation.compute`` that were reached, and evaluated at."""

    def reached(self, marks: Sequence[float]) -> int:
        """Number of ``marks`` that the run's compute has reached."""
        compute = compute_of(**self.compute)
        return sum(compute >= mark for mark in marks)

    def add_step(self, outcome: StepOutcome, *, keep_used: bool) -> RunState:
        """Return the state after one more step; its metrics are still to be added."""
        computed = tokens_computed(outcome)
        replayed = [member.content_id for member in outcome.replays] if keep_used else []
        return replace(
            self,
            step=self.step + 1,
            score=None,
            used=dict(Counter(self.used) + Counter(replayed)),
            compute={name: count + self.compute.get(name, 0) for name, count in computed.items()},
            solved=sorted({*self.solved, *(visit.prompt_id for visit in outcome.step.visits if visit.successes)}),
        )

    def with_idle(self, idle: IdleSteps) -> RunState:
        """Return this state with other counts of steps that brought nothing."""
        return replace(self, idle=idle.replays, untrained=idle.updates)

    def with_metrics(self, metrics: Mapping[str, MetricValue]) -> RunState:
        """Return this state with the last step's metrics, whose line is still to be written."""
        return replace(self, unrecorded={name: plain(value) for name, value in metrics.items()})

    def record(self, metrics: Mapping[str, MetricValue], best: str | None, marks: Sequence[float] = ()) -> RunState:
        """Return this state after the last step's line was written; ``best`` is scored by it, ``marks`` may be reached by it."""
        score = metrics.get(best) if best else None
        done = replace(self, unrecorded={}, evaluated=self.reached(marks), metric=best or "")
        return replace(done, score=score if isinstance(score, int | float) else None)


def run_metrics(before: RunState, state: RunState, outcome: StepOutcome) -> dict[str, MetricValue]:
    """Return sums over the run after a step, and the count of prompts that it solved before and not now."""
    known = set(before.solved)
    return {
        **{f"compute/{name}_tokens": count for name, count in state.compute.items()},
        "prompts/solved": len(state.solved),
        "prompts/lost": sum(visit.prompt_id in known and not visit.successes for visit in outcome.step.visits),
    }


def tokens_computed(outcome: StepOutcome) -> dict[str, int]:
    """Count the tokens of a step that went through the model, prompts included; evaluations, retries and checks are not counted.

    ``generated`` by the generators, ``scored`` by the learner without gradient (old and reference log-probs, entropies for
    ``loss.high_entropy_fraction``, candidates for ``replay.selection``), ``trained`` with gradient; sequences out of the loss
    are not computed.
    """
    lengths = [(np.diff(batch.offsets), batch.computed) for batch in outcome.batches]
    config, every = outcome.step.run.config, sum(int(tokens.sum()) for tokens, _ in lengths)
    trained = sum(int(tokens[computed].sum()) for tokens, computed in lengths) * config.update.epochs
    scored = outcome.step.candidate_tokens
    if not outcome.supervised:
        scored += every
        scored += trained if config.loss.kl_coef else 0
        scored += every * config.update.epochs if config.loss.high_entropy_fraction < 1 else 0
    return {"generated": sum(visit.tokens for visit in outcome.step.visits), "scored": scored, "trained": trained}
