"""Length and difference of a pool's responses, measured on some of its questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from rlep.core.seeds import seed_for
from rlep.core.types import Int32Array, Int64Array
from rlep.services.pool.storage.scan import trajectory_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """Quantiles (level → value) over some questions; empty where there was nothing to measure."""

    questions: int
    """Questions measured."""
    trajectories: int
    """Their responses."""
    length: Mapping[float, float]
    """Tokens of a response."""
    distinctness: Mapping[float, float]
    """Of a question with two responses or more: the share of different ones among all 4-token pieces of its responses.

    1: no piece occurs twice. 1/n: n responses that are the same but for a few tokens.
    """


def measure(pool: PoolClient, *, questions: int) -> Measured:
    """Measure a fixed choice of at most this many questions (0: all), some hundred records in memory at a time.

    The choice is a hash of the prompt ids: the same while the questions are the same. Raises ``RecordRefused`` where a
    record is damaged.
    """
    prompt_ids = pool.prompt_ids()
    # By a hash, not by a draw: figures of two days differ because the pool does.
    if questions and len(prompt_ids) > questions:
        prompt_ids = sorted(sorted(prompt_ids, key=lambda prompt_id: seed_for(0, "measure", prompt_id))[:questions])
    lengths: list[int] = []
    shares: list[float] = []
    for _, held in groupby(pool.records(prompt_ids), key=lambda one: one.prompt_id):
        responses = [trajectory_of(one).tokens for one in held]
        lengths += map(len, responses)
        if len(responses) > 1 and (share := distinctness(responses)) is not None:
            shares.append(share)
    return Measured(len(prompt_ids), len(lengths), _quantiles(lengths), _quantiles(shares))


def distinctness(responses: Sequence[Int32Array]) -> float | None:
    """The share of different ones among all pieces of four tokens, or None where every response is shorter.

    Worked example: [1 2 3 4 5] and [1 2 3 4 6] have the pieces 1234, 2345, 1234, 2346: 3 of 4.
    """
    pairs = np.concatenate([_joined(response.astype(np.int64), 1) for response in responses])
    _, ranks = np.unique(pairs, return_inverse=True)
    bounds = np.cumsum([0, *(max(0, len(response) - 1) for response in responses)]).tolist()
    quads = np.concatenate([_joined(ranks[start:end], 2) for start, end in pairwise(bounds)])
    return len(np.unique(quads)) / len(quads) if len(quads) else None


def _joined(values: Int64Array, apart: int) -> Int64Array:
    """Each value, below 2^31, with the one ``apart`` places on, as one number."""
    return (values[: max(0, len(values) - apart)] << 32) | values[apart:]


def _quantiles(values: Sequence[float]) -> dict[float, float]:
    """Values that occur, each with at least its level's share of all values at or below it."""
    if not values:
        return {}
    return dict(zip(LEVELS, np.quantile(values, LEVELS, method="inverted_cdf").tolist(), strict=True))
