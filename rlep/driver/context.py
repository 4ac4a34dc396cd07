"""What a run and one of its steps carry from place to place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlep.algorithms.dynamic_sampling import RefillReport
from rlep.config.schema import Config
from rlep.core.types import Prompt
from rlep.driver.clock import Clock
from rlep.driver.ports import Progress, Roles, Trainers


@dataclass(frozen=True, slots=True)
class Run:
    """What stays the same over all steps of a run."""

    config: Config
    roles: Roles
    progress: Progress
    tokenizer_digest: str
    policy_digest: str
    """Names the policy lineage: base weights and run."""
    generator_dtype: str


MorePrompts = Callable[[int, int, Sequence[Prompt]], Sequence[Prompt]]
"""(round, how many, prompts already used) → further prompts of the step, for dynamic sampling."""


@dataclass(slots=True)
class Step:
    """One training step while it is made."""

    run: Run
    trainers: Trainers
    number: int
    """k: the policy version it trains, and that its rollouts come from (with staleness also from the ones before)."""
    replays: int
    """M of this step; 0 asks nobody."""
    more: MorePrompts
    clock: Clock = field(default_factory=Clock)
    used: Mapping[str, int] = field(default_factory=dict)
    """Content id → how many earlier steps replayed it; kept where ``replay.selection`` asks for it."""
    refills: RefillReport = field(default_factory=RefillReport)
    """What dynamic sampling did."""
