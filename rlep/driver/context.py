"""What a run and one of its steps carry from place to place."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlep.algorithms.dynamic_sampling import RefillReport
from rlep.config.schema import Config
from rlep.core.types import Prompt, Trajectory
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


@dataclass(slots=True)
class Clock:
    """Seconds by phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``name``."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


MorePrompts = Callable[[int, int, Sequence[Prompt]], Sequence[Prompt]]
"""(round, how many, prompts already used) → further prompts of the step, for dynamic sampling."""


Answers = AsyncGenerator[tuple[Prompt, list[Trajectory]], None]
"""(prompt, its graded answers in sample order), as each prompt's verdicts arrive."""


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
    in_flight: int | None = None
    """Requests that generators hold at once; None: as many as they can."""
    begun: Callable[[], Answers] | None = None
    """Its answers where they were begun before it; None: the step begins them."""
    ready: int | None = None
    """Prompts whose answers were verified when the step began; None where nothing was begun before."""
