"""A run and one of its steps, as the driver's functions are given them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlep.algorithms.dynamic_sampling import RefillReport
from rlep.config.schema import Config
from rlep.core.types import Group, Prompt
from rlep.driver.clock import Clock
from rlep.driver.ports import Generators, Learner, Progress, ReplaySource, Rollouts, Verifiers, Weights
from rlep.methods.replay_method import ReplayMethod, Visit


@dataclass(frozen=True, slots=True)
class Roles:
    """Generators and verifiers: enough for evaluation and collection."""

    generators: Generators
    verifiers: Verifiers


@dataclass(frozen=True, slots=True)
class Trainers:
    """The other roles of a training step."""

    learner: Learner
    weights: Weights
    rollouts: Rollouts
    pool: ReplaySource | None
    """None where nothing is replayed."""
    failures: ReplaySource | None = None
    """Failed responses; None where none are replayed."""
    method: ReplayMethod = field(default_factory=ReplayMethod)


@dataclass(frozen=True, slots=True)
class Run:
    """All that stays the same over the steps of a run."""

    config: Config
    roles: Roles
    progress: Progress
    tokenizer_digest: str
    policy_digest: str
    """Identifies the policy lineage: base weights and run."""
    generator_dtype: str
    vocabulary: int | None = None
    """Rows of the model's embedding: a token id beyond it is not trained on. None: not known."""
    template_digest: str = ""
    """Of what makes a prompt of a question; stored with each response."""
    environment_digest: str = ""
    """Of the environment that the responses are episodes of, stored with each; empty: of none."""
    grader_digest: str = ""
    """Names what decides the rewards, with the versions of its code."""


MorePrompts = Callable[[int, int, Sequence[Prompt]], Sequence[Prompt]]
"""(round, how many, prompts already used) → further prompts of the step, for dynamic sampling."""


@dataclass(slots=True)
class Step:
    """One training step in progress."""

    run: Run
    trainers: Trainers
    number: int
    """k: the policy version that it trains and that generates its rollouts (with staleness also earlier ones)."""
    replays: int
    """M of this step; with 0 the pool is not asked."""
    more: MorePrompts
    clock: Clock = field(default_factory=Clock)
    used: Mapping[str, int] = field(default_factory=dict)
    """Content id → how many earlier steps replayed it; kept where ``replay.selection`` needs it."""
    refills: RefillReport = field(default_factory=RefillReport)
    """Counts of dynamic sampling."""
    unused: list[Group] = field(default_factory=list)
    """Groups that it sampled and the step does not train on."""
    visits: list[Visit] = field(default_factory=list)
    """The prompts that were rolled out, in the order of their groups."""
    asked: frozenset[str] = frozenset()
    """Prompts that its replays were drawn for: all, or those that its method chose."""
    accepting: int = 0
    """Those of ``asked`` whose fresh responses let replays into their group, whether or not any were stored."""
    unfit: int = 0
    """Drawn responses that were left out: this run cannot train on them."""
    candidate_tokens: int = 0
    """Prompt and response tokens of stored responses that were scored to choose among them."""
