"""What the driver needs from other processes. The actors implement these ports; tests put fakes behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from rlep.core.types import (
    AddReport,
    Completion,
    Float32Array,
    Prompt,
    Reissued,
    Request,
    Sampling,
    SequenceBatch,
    Trajectory,
    UpdateOutcome,
    Verdict,
)
from rlep.driver.clock import Clock
from rlep.driver.step_values import ScoredMiniBatch, Visit
from rlep.metrics.catalogue import MetricValue


class Generators(Protocol):
    """Engines that generate responses under the policy version they hold."""

    @property
    def reissued(self) -> Reissued:
        """How many requests were re-dispatched, and how many completions came twice."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Exactly one completion per request, each as it finishes, in any order.

        Requests are begun in their order, no more at a time than the engines hold.
        Raises ``DeadlineExceeded`` naming how many are missing, ``ActorLost`` when no generator is left.
        """
        ...


class Verifiers(Protocol):
    """Graders of responses."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order."""
        ...


class ReplaySource(Protocol):
    """Where a step's replays are drawn from."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """At most ``count`` trajectories per prompt; a pure function of (snapshot, seed, step, prompt id)."""
        ...


class ReplayPool(ReplaySource, Protocol):
    """The experience pool."""

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store; idempotent."""
        ...

    async def digest(self) -> str:
        """A hash of the pool's present content."""
        ...


class LivePool(Protocol):
    """The pool of a run's own responses. Its user keeps the index; a mapping is from prompt id to content ids."""

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store; idempotent."""
        ...

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[Trajectory]]:
        """These, in this order; raises ``PoolError`` where one is not there."""
        ...

    async def contents(self) -> Mapping[str, Sequence[str]]:
        """All that it holds."""
        ...

    async def remove(self, gone: Mapping[str, Sequence[str]]) -> int:
        """Remove; idempotent. How many were there."""
        ...


class Experience(ReplaySource, Protocol):
    """What a run replays from while it fills it."""

    def questions(self, step: int, count: int, beside: Collection[str]) -> Sequence[str]:
        """At most ``count`` prompts of its choice, not ``beside`` others of the step; only they get its replays in that step."""
        ...

    async def learn(
        self, step: int, trained: Sequence[ScoredMiniBatch], visits: Sequence[Visit]
    ) -> dict[str, MetricValue]:
        """Take in a step that is complete; its metrics. ``visits``: all prompts that were rolled out."""
        ...

    def write(self, directory: Path) -> None:
        """Write its state into a checkpoint's directory."""
        ...

    async def restore(self, directory: Path | None, *, accept: bool) -> None:
        """Go on from a checkpoint's directory, or from the beginning; ``accept`` goes on without lost responses."""
        ...


class Learner(Protocol):
    """All ranks as one: they fail together and are restored together."""

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Log-probs ``[R]`` of the response tokens at temperature 1.

        Under the present weights; with ``rollout`` under those before its first update, if the learner keeps them.
        """
        ...

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """One optimizer step on whole groups with their old log-probs; ``rollout`` counts for the warm-up.

        ``supervised`` minimises the cross-entropy of the responses instead.
        """
        ...

    async def save(self, directory: Path) -> None:
        """Snapshot the present state and begin to write ``model/`` (Hugging Face) and ``trainer/`` into a directory.

        Later updates do not change what is written. One at a time.
        """
        ...

    async def written(self) -> None:
        """Wait until the files of the last ``save`` are complete; raises ``CheckpointError`` when they cannot be."""
        ...

    async def load(self, directory: Path) -> None:
        """Restore both."""
        ...

    async def restart(self) -> None:
        """Start all ranks again from the base weights; raises ``LearnerLost`` when no restart is left."""
        ...


class Weights(Protocol):
    """Weight updates from the learner to the generators."""

    async def publish(self, version: int) -> float:
        """Bring every generator to ``version``; returns the max log-prob difference of the check (nats)."""
        ...


class Progress(Protocol):
    """Progress bars; silent where there is no terminal."""

    def phase(self, name: str, total: int, unit: str) -> AbstractContextManager[Advance]: ...

    def note(self, text: str) -> None:
        """Show one line."""
        ...


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, by: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class RolloutBars:
    """The progress bars of a rollout, in responses."""

    rollout: Advance
    verify: Advance


Spared = Mapping[str, int]
"""Prompt id → how many of its G responses need not be generated, because replays take their place."""

NONE_SPARED: Spared = MappingProxyType({})


class Verified(Protocol):
    """(prompt, its verified responses in sample order), as each prompt's verdicts arrive."""

    def __aiter__(self) -> AsyncIterator[tuple[Prompt, list[Trajectory]]]: ...

    async def aclose(self) -> None:
        """End the rollout; its user calls this whatever happens."""
        ...


class Rollouts(Protocol):
    """The G verified responses to each prompt of a step."""

    def of(
        self, number: int, prompts: Sequence[Prompt], clock: Clock, shown: RolloutBars, spared: Spared = NONE_SPARED
    ) -> Verified:
        """The rollout of step ``number``; ``clock`` gets the seconds of ``generate`` and ``verify``."""
        ...

    async def drop(self) -> None:
        """End every prefetched rollout: the run is over, or is restored from a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class Roles:
    """Generators and verifiers: enough for evaluation and collection."""

    generators: Generators
    verifiers: Verifiers


@dataclass(frozen=True, slots=True)
class Trainers:
    """What else a training step needs."""

    learner: Learner
    weights: Weights
    rollouts: Rollouts
    pool: ReplaySource | None
    """None where nothing is replayed."""
    failures: ReplaySource | None = None
    """Failed responses; None where none are replayed."""
    live: Experience | None = None
    """``pool``, where the run also fills it (``replay.source``)."""
