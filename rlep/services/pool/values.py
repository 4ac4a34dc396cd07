"""Values that a pool's callers give and get, wherever the pool is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlep.services.pool.storage.codec import Precision

DEFAULT_CAP = 64
"""Most trajectories kept for one prompt. Beyond it those with the smallest content ids stay, whatever came first."""


DEFAULT_MINIMUM = 2
"""Trajectories that a prompt needs before any of them is drawn."""

COVERAGE = (1, 2, 4, 8)
"""Numbers of trajectories of which a pool tells how many questions have as many."""

LIVE = ".live"
"""Ends the name of a pool of a run's own responses."""

FAILURES = ".failures"
"""Ends the name of a pool of wrong answers: it serves the paper's ablation and nothing else."""


LONGEST_LABEL = 4096
"""Most characters of a policy's ``digest@version`` and of a verifier's ``name@version``."""

OTHERS = "others"
"""Name under which statistics count what they have no room to list; every other one has an ``@``."""


def held_verdict(name: str) -> Literal["correct", "wrong"]:
    """The verdict of what a pool of this name takes."""
    return "wrong" if name.endswith(FAILURES) else "correct"


def policies(counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """(name, steps, responses) of each policy in ``PoolStats.by_policy``, most responses first; a run is one policy."""
    found: dict[str, list[tuple[int, int]]] = {}
    for label, count in counts.items():
        name, _, version = label.rpartition("@")
        found.setdefault(name or label, []).append((int(version) if name else -1, count))
    rows = []
    for name, steps in found.items():
        first, last = min(steps)[0], max(steps)[0]
        span = "–" if last < 0 else str(first) if first == last else f"{first} to {last}"
        rows.append((name, span, sum(count for _, count in steps)))
    return sorted(rows, key=lambda row: (-row[2], row[0]))


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Contents of a pool."""

    trajectories: int
    bytes: int
    """Size of the stored records."""
    questions_with: Mapping[int, int]
    """n -> prompts with at least n trajectories, for n = 1, 2, 4, 8."""
    by_policy: Mapping[str, int]
    """``digest@version`` of the policy -> trajectories. Those with most of them, up to 4 MiB; then ``OTHERS`` counts the rest."""
    by_verifier: Mapping[str, int]
    """``name@version`` of the verifier -> trajectories, likewise."""
    sealed: str | None
    """The digest of a sealed pool."""
    tokenizer_digest: str = ""
    """Of the tokenizer whose token ids it holds."""
    cap: int = 0
    """Most trajectories a prompt."""
    minimum: int = DEFAULT_MINIMUM
    """Trajectories that a prompt needs before any of them is drawn, where a draw states no other number."""
    vocabulary: int | None = None
    """Token ids are below this; None where nobody stated it."""
    questions: int = 0
    """Prompts that ever had a trajectory."""
    quarantined: int = 0
    """Trajectories set aside, which are refused if they come again."""
    redis_bytes: int = 0
    """Memory that Redis uses, for all pools in it."""
    redis_limit: int = 0
    """Its ``maxmemory``; 0: none."""


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """Where a run's pool is."""

    url: str | None
    """Of a Redis, or ``grpc://``, ``grpcs://`` of a pool server; None: an embedded Redis."""
    directory: Path
    """Of the embedded Redis."""
    name: str
    token_file: Path | None = None
    """Holds the token for a pool server."""
    ca_file: Path | None = None
    """Authority of a pool server's certificate, PEM; None: the public ones."""
    socket: Path | None = None
    """Where a Redis at ``url`` is served for this user; in a directory that nobody else enters."""
    password_file: Path | None = None
    """Holds the password of a Redis at ``url``; None: it is where the environment of the process that serves it says."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Settings with which a pool is opened; the defaults suit a training run that reads and appends."""

    cap: int | None = None
    """Most trajectories a prompt; None takes the pool's own (64 where it is new). Fixed when the pool is made."""
    minimum: int | None = None
    """A prompt with fewer verified trajectories than this gives none; None takes the pool's own (2 where it is new)."""
    read_only: bool = False
    """Never writes; the pool must exist, unless ``may_be_missing``."""
    may_be_missing: bool = False
    """A reader takes a pool that is not there for an empty one, whose tokenizer is the empty string."""
    may_be_full: bool = False
    """A writer takes a Redis without room for records, too: to remove and to seal."""
    writer: str = "main"
    """Names a writer whose incarnations fence each other, e.g. the run."""
    writer_epoch: int | None = None
    """This incarnation's number: once a newer one has opened the pool, this one's inserts are refused. None: unfenced."""
    precision: Precision = "float16"
    """How log-probs are stored."""
    deadline: float = 30.0
    """Longest wait for one operation in seconds, retries included."""
    vocabulary: int | None = None
    """Ids of the model's vocabulary: a token id beyond it is refused. Recorded in a pool that has none. None: the pool's."""
    allow_volatile: bool = False
    """Accept a Redis without append-only file, which loses acknowledged trajectories in a crash."""


DEFAULT_OPTIONS = PoolOptions()
