"""What the driver asks of the world. The actors' facades implement these; tests put fakes behind the same ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
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


class Generators(Protocol):
    """Engines that write answers under the policy version they hold."""

    @property
    def reissued(self) -> Reissued:
        """How often their work was handed out again, or done twice."""
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
    """Graders of answers."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order."""
        ...


class ReplayPool(Protocol):
    """The experience pool."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """At most ``count`` trajectories per prompt; a pure function of (snapshot, seed, step, prompt id)."""
        ...

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store; idempotent."""
        ...

    async def digest(self) -> str:
        """Names the pool's present content."""
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
        """Take the present state aside and begin to write ``model/`` (Hugging Face) and ``trainer/`` into a directory.

        The state of this moment is written, whatever is trained meanwhile. One at a time.
        """
        ...

    async def written(self) -> None:
        """Wait until the files of the last ``save`` are complete; raises ``CheckpointError`` when they cannot be."""
        ...

    async def load(self, directory: Path) -> None:
        """Take both up again."""
        ...

    async def restart(self) -> None:
        """Start all ranks again from the base weights; raises ``LearnerLost`` when no restart is left."""
        ...


class Weights(Protocol):
    """The way of the learner's weights to the generators."""

    async def publish(self, version: int) -> float:
        """Bring every generator to ``version``; returns the largest log-prob gap of the handshake (nats)."""
        ...


class Progress(Protocol):
    """Progress bars; silent where there is no terminal."""

    def phase(self, name: str, total: int, unit: str) -> AbstractContextManager[Advance]: ...

    def note(self, text: str) -> None:
        """One line of news."""
        ...


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, by: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class RolloutBars:
    """The progress bars of a rollout, in responses."""

    rollout: Advance
    verify: Advance


class Verified(Protocol):
    """(prompt, its verified responses in sample order), as each prompt's verdicts arrive."""

    def __aiter__(self) -> AsyncIterator[tuple[Prompt, list[Trajectory]]]: ...

    async def aclose(self) -> None:
        """End the rollout; whoever asked for it calls this in any case."""
        ...


class Rollouts(Protocol):
    """The G verified responses to each prompt of a step."""

    def of(self, number: int, prompts: Sequence[Prompt], clock: Clock, shown: RolloutBars) -> Verified:
        """The rollout of step ``number``; ``clock`` gets the seconds of ``generate`` and ``verify``."""
        ...

    async def drop(self) -> None:
        """End every rollout that was begun and not asked for: the run is over, or is restored from a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class Roles:
    """Who writes answers and who judges them: enough for evaluation and collection."""

    generators: Generators
    verifiers: Verifiers


@dataclass(frozen=True, slots=True)
class Trainers:
    """Who else a training step needs."""

    learner: Learner
    weights: Weights
    rollouts: Rollouts
    pool: ReplayPool | None
    """None where nothing is replayed."""
    failures: ReplayPool | None = None
    """Failed answers; None where none are replayed."""
