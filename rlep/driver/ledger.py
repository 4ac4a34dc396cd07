"""What a run has computed and solved so far, counted in every checkpoint: a continued run counts on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlep.core.types import SequenceBatch
from rlep.driver.context import Step
from rlep.driver.step_values import Visit
from rlep.metrics.catalogue import MetricValue


@dataclass(frozen=True, slots=True)
class Compute:
    """Tokens that went through the model, prompts included; evaluations, retries and the log-prob check are not counted."""

    generated: int = 0
    """By the generators: each response with its prompt."""
    scored: int = 0
    """By the learner without gradient: old log-probs, reference log-probs, and candidates for ``replay.selection``."""
    trained: int = 0
    """By the learner with gradient; sequences that are out of the loss are not computed."""

    def __add__(self, other: Compute) -> Compute:
        return Compute(self.generated + other.generated, self.scored + other.scored, self.trained + other.trained)


def compute_of(step: Step, batches: Iterable[SequenceBatch], *, supervised: bool = False) -> Compute:
    """Of a step that made one update on each of ``batches``."""
    lengths = [(np.diff(batch.offsets), batch.computed) for batch in batches]
    trained = sum(int(tokens[chosen].sum()) for tokens, chosen in lengths)
    scored = 0 if supervised else sum(int(tokens.sum()) for tokens, _ in lengths)
    reference = trained if step.run.config.loss.kl_coef and not supervised else 0
    generated = sum(visit.tokens for visit in step.visits)
    return Compute(generated, scored + reference + step.candidate_tokens, trained)


NO_COMPUTE = Compute()


@dataclass(slots=True)
class Ledger:
    """Sums over the steps of a run."""

    compute: Compute = NO_COMPUTE
    solved: set[str] = field(default_factory=set)
    """Prompts with a correct fresh response so far."""

    def add(self, compute: Compute, visits: Sequence[Visit]) -> dict[str, MetricValue]:
        """Count a step in; its metrics."""
        lost = sum(visit.prompt_id in self.solved and not visit.successes for visit in visits)
        self.compute += compute
        self.solved.update(visit.prompt_id for visit in visits if visit.successes)
        return {
            "compute/generated_tokens": self.compute.generated,
            "compute/scored_tokens": self.compute.scored,
            "compute/trained_tokens": self.compute.trained,
            "prompts/solved": len(self.solved),
            "prompts/lost": lost,
        }

    def restore(self, compute: Mapping[str, int], solved: Iterable[str]) -> None:
        """Go on from a checkpoint's counts."""
        self.compute, self.solved = Compute(**compute), set(solved)
