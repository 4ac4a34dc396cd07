"""Ports: all that the driver needs from other processes. Actors implement them; tests put fakes behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlep.core.episodes import Action, Observation
from rlep.core.progress import Advance
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
from rlep.driver.tasks import Produced


class Generators(Protocol):
    """Engines that generate responses under the policy version they hold."""

    @property
    def reissued(self) -> Reissued:
        """Requests that were re-dispatched, and completions that came twice."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Yield exactly one completion per request, each as it finishes, in any order.

        Requests are begun in their order, no more at a time than the engines hold.
        Raises ``DeadlineExceeded`` naming how many are missing, ``ActorLost`` when no generator is left.
        """
        ...


class Verifiers(Protocol):
    """Graders of responses."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in order."""
        ...


class Environments(Protocol):
    """Environments of episodes; each episode has its own, until it is ended."""

    @property
    def tools(self) -> Sequence[Mapping[str, object]]:
        """JSON schemas of its tools, as chat templates take them; empty where it has ``step``."""
        ...

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        """Make its environment and reset it with a row of the data, a JSON object; ``seed`` is for what it draws."""
        ...

    async def act(self, episode: str, action: Action) -> Observation:
        """Answer a turn. Raises nothing for what a tool or an environment does wrong: the observation says it."""
        ...

    async def end(self, episode: str) -> Verdict | None:
        """Forget the episode, at any time and also twice; return what its environment says of it, if it does."""
        ...


class ReplaySource(Protocol):
    """Source of a step's replays."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """Draw at most ``count`` trajectories per prompt; a pure function of (snapshot, seed, step, prompt id)."""
        ...


class ReplayPool(ReplaySource, Protocol):
    """A pool: verbs of ``AsyncPoolClient``. A mapping is from prompt id to content ids."""

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store trajectories; idempotent."""
        ...

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[Trajectory]]:
        """Return these, in this order; raises ``PoolError`` where any is missing."""
        ...

    async def contents(self, prompt_ids: Sequence[str] | None = None) -> Mapping[str, Sequence[str]]:
        """Return all that it holds, or what it holds of these prompts."""
        ...

    async def remove(self, prompt_id: str, content_ids: Sequence[str]) -> int:
        """Remove these; idempotent. Returns how many were there."""
        ...

    async def digest(self) -> str:
        """Return a hash of the pool's present content."""
        ...


class Learner(Protocol):
    """All ranks as one: they fail together and are restored together."""

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Return log-probs ``[R]`` of the response tokens at temperature 1.

        Under the present weights; with ``rollout`` under those before its first update, if the learner keeps them.
        """
        ...

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """Make one optimizer step on whole groups with their old log-probs; ``rollout`` counts for the warm-up.

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
        """Bring every generator to ``version``; returns the largest mean log-prob difference of one (nats)."""
        ...


class Progress(Protocol):
    """Progress bars; silent where there is no terminal."""

    def phase(self, name: str, total: int, unit: str) -> AbstractContextManager[Advance]: ...

    def note(self, text: str) -> None:
        """Show one line."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutBars:
    """The progress bars of a rollout, in responses."""

    rollout: Advance
    verify: Advance


Verified = Produced[tuple[Prompt, list[Trajectory]]] | AsyncGenerator[tuple[Prompt, list[Trajectory]]]
"""(prompt, its verified responses in sample order), as each prompt's verdicts arrive; its user calls ``aclose`` in any case."""


class Rollouts(Protocol):
    """Verified responses to the requests of a step."""

    def of(
        self, step: int, prompts: Sequence[Prompt], requests: Sequence[Request], clock: Clock, shown: RolloutBars
    ) -> Verified:
        """Begin the rollout of a step; ``clock`` gets the seconds of ``generate`` and ``verify``."""
        ...

    async def drop(self) -> None:
        """End every prefetched rollout: the run is over, or is restored from a checkpoint."""
        ...
