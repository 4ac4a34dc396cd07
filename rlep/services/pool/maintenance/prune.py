"""Removing trajectories by where they come from, how old they are, and how many their question has."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING

from rlep.core.errors import ConfigError
from rlep.core.progress import Advance
from rlep.services.pool.storage.scan import Held, trajectory_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient


@dataclass(frozen=True, slots=True)
class Criteria:
    """Criteria of what goes: trajectories that meet every one given."""

    policy: str | None = None
    """Pattern (``*``, ``?``) of ``digest@version`` as the statistics show it."""
    verifier: str | None = None
    """Pattern of ``name@version``."""
    before: float | None = None
    """Created before this time, seconds since the epoch."""
    keep: int = 0
    """A question is left with at least this many: first those that other criteria spare, then the smallest content ids."""

    def __post_init__(self) -> None:
        if self.keep < 0 or (self.policy, self.verifier, self.before, self.keep) == (None, None, None, 0):
            raise ConfigError("nothing says what to prune: give --policy, --verifier, --older-than or --keep")


@dataclass(slots=True)
class Pruned:
    """Result of pruning, done or planned."""

    examined: int = 0
    removed: int = 0
    emptied: int = 0
    """Questions left without a response."""


def prune(pool: PoolClient, criteria: Criteria, *, dry_run: bool, advance: Advance = lambda _: None) -> Pruned:
    """Remove what meets the criteria, question by question. May be repeated."""
    result = Pruned()
    for prompt_id, group in groupby(pool.records(), key=lambda held: held.prompt_id):
        meets = {held.content_id: _meets(held, criteria) for held in group}
        result.examined += len(meets)
        free = [content_id for content_id, met in meets.items() if met]
        # What other criteria spare counts towards ``keep``; of the rest the first, the smallest ids, fill it up.
        removed = free[max(0, criteria.keep - (len(meets) - len(free))) :]
        if removed and not dry_run:
            pool.remove(prompt_id, [content_id.hex() for content_id in removed])
        result.removed += len(removed)
        result.emptied += len(removed) == len(meets)
        advance(len(meets))
    return result


def _meets(held: Held, criteria: Criteria) -> bool:
    trajectory = trajectory_of(held)
    origin, verdict = trajectory.provenance, trajectory.verdict
    wanted = (
        (criteria.policy, f"{origin.policy_digest}@{origin.policy_version}"),
        (criteria.verifier, f"{verdict.verifier}@{verdict.version}"),
    )
    named = all(pattern is None or fnmatchcase(name, pattern) for pattern, name in wanted)
    return named and (criteria.before is None or trajectory.created_at < criteria.before)
