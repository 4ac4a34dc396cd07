"""Draws of stored responses and of questions: pure functions of (run seed, step, prompt id), the same in any order of prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlep.core.seeds import seed_for
from rlep.core.types import Float64Array, Int64Array

UInt64Array = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def prompt_keys(prompt_ids: Sequence[str]) -> UInt64Array:
    """Prompt ids (32 hex digits) as 128-bit integers ``[P, 2]``, high word first; worth keeping between draws.

    Any other id is first hashed to 16 bytes by ``blake2b(id, person=b"rlep.draw")``.
    """
    raw = b"".join(_id_bytes(prompt_id) for prompt_id in prompt_ids)
    return np.frombuffer(raw, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def draw_uniform(
    prompt_ids: Sequence[str], candidate_counts: ArrayLike, count: int, *, seed: int, step: int
) -> tuple[Int64Array, Int64Array]:
    """Draw min(count, n) of each prompt's n candidates uniformly without replacement.

    Returns ``indices [K]`` into each prompt's own candidates and ``offsets [P + 1]``: prompt p's are
    ``indices[offsets[p]:offsets[p + 1]]``. The function is a contract: a given (seed, step, prompt id, n, count)
    gives these numbers in every version.

    With ``mix`` the finaliser of splitmix64 and γ = 0x9E3779B97F4A7C15, modulo 2^64:
    ``s = seed_for(seed, "replay", step)``; ``key = mix(mix(high ^ s) ^ low)`` of the prompt id;
    ``x_i = mix(key + (i + 1) γ)`` for pick i. Floyd's algorithm with k = min(count, n) picks, for i = 0 … k − 1,
    ``t = ⌊x_i · (n − k + i + 1) / 2^64⌋``, or n − k + i where t was already picked. Multiply-shift is off uniform
    by less than n / 2^64.
    """
    return draw_uniform_keyed(prompt_keys(prompt_ids), candidate_counts, count, seed=seed, step=step)


def draw_uniform_keyed(
    keys: UInt64Array, candidate_counts: ArrayLike, count: int, *, seed: int, step: int
) -> tuple[Int64Array, Int64Array]:
    """``draw_uniform`` for prompts whose ``prompt_keys`` are at hand."""
    available = np.asarray(candidate_counts, dtype=np.int64)
    if available.shape != (len(keys),):
        raise ValueError(f"candidate_counts of shape {available.shape} for {len(keys)} prompts: must be [P]")
    if count < 0 or (available < 0).any() or (available >= 1 << 32).any():
        raise ValueError(
            f"count = {count}, candidate_counts {available.min()} … {available.max()}: must be in 0 … 2^32"
        )
    count = min(count, int(available.max(initial=0)))
    picked = np.minimum(available, count)  # [P]
    numbers = np.arange(count)
    last = (available - picked)[:, None] + numbers  # [P, count]; Floyd: the newest number that pick i may be
    words = random_words(keyed_states(keys, seed, step)[:, None], numbers)
    picks = _scaled(words, last.astype(np.uint64) + np.uint64(1))
    for i in range(1, count):
        repeated = (picks[:, :i] == picks[:, i : i + 1]).any(axis=1)
        picks[repeated, i] = last[repeated, i]
    return picks[numbers < picked[:, None]], np.concatenate([[0], np.cumsum(picked)])


def draw_aged(prompt_id: str, ages: ArrayLike, count: int, *, decay: float, seed: int, step: int) -> tuple[int, ...]:
    """Draw min(count, n) of one prompt's n candidates without replacement, with weights e^(−age / decay).

    By the smallest −ln(u) / w (Efraimidis and Spirakis 2006), u from the words of ``draw_uniform``'s stream.
    """
    words = random_words(keyed_states(prompt_keys([prompt_id]), seed, step), np.arange(np.size(ages)))
    order = _weighted_order(words, -np.asarray(ages, dtype=np.float64) / decay)
    return tuple(order[:count].tolist())


def draw_questions(
    successes: Mapping[str, int], count: int, *, of: int, mean: float, std: float, seed: int, step: int
) -> list[str]:
    """Draw min(count, n) of n prompts without replacement, by their successes in the latest visit (ExGRPO, section 3.2).

    The weight of a prompt with s of ``of`` successes is exp(−(s/of − mean)² / 2 std²) over the number of prompts with the
    same s. Each prompt's u is a function of (seed, step, prompt id), so their order does not matter.
    """
    ids = sorted(successes)
    if not ids:
        return []
    buckets = np.array([successes[one] for one in ids])
    rates = buckets / of
    log_weights = -((rates - mean) ** 2) / (2 * std**2) - np.log(np.bincount(buckets)[buckets])
    order = _weighted_order(keyed_states(prompt_keys(ids), seed, step, "questions"), log_weights)
    return [ids[index] for index in order[:count]]


def _weighted_order(words: UInt64Array, log_weights: Float64Array) -> Int64Array:
    """Order of a draw without replacement; logarithms, so that no weight underflows."""
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    return np.argsort(np.log(-np.log(uniform)) - log_weights, kind="stable")


def _id_bytes(prompt_id: str) -> bytes:
    try:
        raw = bytes.fromhex(prompt_id)
    except ValueError:
        raw = b""
    return raw if len(raw) == 16 else hashlib.blake2b(prompt_id.encode(), digest_size=16, person=b"rlep.draw").digest()


def keyed_states(keys: UInt64Array, seed: int, step: int, draw: str = "replay") -> UInt64Array:
    """Return the state of each prompt's stream of random words, ``[P]``."""
    return _mix(_mix(keys[:, 0] ^ np.uint64(seed_for(seed, draw, step))) ^ keys[:, 1])  # [P]


def random_words(states: UInt64Array, number: Int64Array) -> UInt64Array:
    """Return word ``number`` of each stream."""
    return _mix(states + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA)


def _mix(words: UInt64Array) -> UInt64Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _scaled(words: UInt64Array, bound: UInt64Array) -> Int64Array:
    """⌊words · bound / 2^64⌋ for bound ≤ 2^32, in two 32-bit halves."""
    low = (words & np.uint64(0xFFFFFFFF)) * bound >> np.uint64(32)
    return (((words >> np.uint64(32)) * bound + low) >> np.uint64(32)).astype(np.int64)
