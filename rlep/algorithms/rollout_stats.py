"""Contents of a step's groups, fresh and replayed apart, before the loss sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlep.algorithms.loss_values import SOURCES
from rlep.core.types import BoolArray, Float64Array, Group, Int64Array, Trajectory


@dataclass(frozen=True, slots=True)
class SourceStats:
    """The trajectories of one source in one step; means are 0 where it has none."""

    sequences: int
    tokens: int
    accuracy: float
    """Share with a correct verdict."""
    score: float
    """Mean shaped reward."""
    truncated: float
    """Share cut at the token limit."""
    length: float
    """Mean number of tokens that the policy sampled."""


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """One step's groups."""

    fresh: SourceStats
    replay: SourceStats
    fresh_successes: tuple[int, ...]
    """``[G + 1]``: number of groups with 0, 1, … G correct fresh responses."""
    groups: int
    groups_short: int
    """Groups with fewer than M replays because the pool has too few responses."""
    groups_without_replays: int


def rollout_stats(groups: Sequence[Group], scores: ArrayLike, *, max_replays: int) -> RolloutStats:
    """Count groups and their members; ``scores`` are ``[S]``, in the order of the groups' members."""
    members = [member for group in groups for member in group.members]
    replayed = np.array([at >= len(g.fresh) for g in groups for at in range(len(g.members))], dtype=np.bool_)
    lengths = np.array([member.sampled_length for member in members], dtype=np.float64)
    correct = np.array([member.correct for member in members], dtype=np.float64)
    truncated = np.array([member.finish_reason == "length" for member in members], dtype=np.float64)
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != lengths.shape:
        raise ValueError(f"scores {values.shape} for {len(members)} trajectories")
    by_source = {
        name: SourceStats(
            sequences=int(rows.sum()),
            tokens=int(lengths[rows].sum()),
            accuracy=_mean(correct, rows),
            score=_mean(values, rows),
            truncated=_mean(truncated, rows),
            length=_mean(lengths, rows),
        )
        for name, rows in zip(SOURCES, (~replayed, replayed), strict=True)
    }
    successes = [sum(member.correct for member in group.fresh) for group in groups]
    most = max((len(group.fresh) for group in groups), default=0)
    return RolloutStats(
        fresh=by_source["fresh"],
        replay=by_source["replay"],
        fresh_successes=tuple(np.bincount(np.array(successes, dtype=np.int64), minlength=most + 1).tolist()),
        groups=len(groups),
        groups_short=sum(len(group.replays) < max_replays for group in groups),
        groups_without_replays=sum(not group.replays for group in groups),
    )


def part_means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each named part of some scores, by name, over those that have it."""
    names = sorted({name for one in parts for name in one})
    return {name: float(np.mean([one[name] for one in parts if name in one])) for name in names}


def _mean(values: Float64Array, rows: BoolArray) -> float:
    return float(values[rows].mean()) if rows.any() else 0.0


def token_staleness(trajectories: Sequence[Trajectory], policy_version: int) -> Int64Array:
    """Policy lag of every sampled token in versions ``[R]``: 0 where ``policy_version`` itself generated it."""
    versions = [
        np.full(one.sampled_length, one.provenance.policy_version)
        if one.token_versions is None
        else one.at_sampled(one.token_versions)
        for one in trajectories
    ]
    return policy_version - np.concatenate(versions).astype(np.int64)
