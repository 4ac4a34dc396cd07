"""Choice of M of a prompt's n stored responses, of questions by their successes, and M over the steps.

Every choice is a pure function of (run seed, step, prompt id) and the candidates: the same in any order of prompts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlep.core.errors import ConfigError
from rlep.core.seeds import seed_for
from rlep.core.types import Float64Array, Int32Array, Int64Array

Strategy = Literal[
    "uniform", "shortest", "diverse", "least-used", "most-probable", "least-probable", "recent", "newest"
]
"""``uniform`` is the paper's."""

UInt64Array = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_CLASS_STREAM = 1 << 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a strategy may know of a stored response."""

    length: int
    """Response tokens."""
    created_at: float
    """Seconds since the epoch."""
    used: int = 0
    """How often it has been drawn."""
    logprob: float | None = None
    """Mean log-prob per token under the current policy, where it has been scored."""
    birth: int = -1
    """The step of this run that it comes from; −1: of another."""
    digest: str = ""
    """Names its final reasoning; equal digests count as the same solution (``reasoning_digest``)."""


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
    words = _stream(_states(keys, seed, step)[:, None], numbers)
    picks = _scaled(words, last.astype(np.uint64) + np.uint64(1))
    for i in range(1, count):
        repeated = (picks[:, :i] == picks[:, i : i + 1]).any(axis=1)
        picks[repeated, i] = last[repeated, i]
    return picks[numbers < picked[:, None]], np.concatenate([[0], np.cumsum(picked)])


def select(
    strategy: Strategy, candidates: Sequence[Candidate], count: int, *, prompt_id: str, seed: int, step: int
) -> tuple[int, ...]:
    """Choose min(count, n) of one prompt's n candidates; ties are broken uniformly by the same seeded hash.

    ``uniform`` gives what ``draw_uniform`` gives. ``diverse`` takes a random response of each of as many distinct
    digests as it can, the digests drawn uniformly, before it takes a second of any.

    Raises:
        ConfigError: an unknown strategy, or one whose input the candidates lack.
    """
    if strategy not in get_args(Strategy):
        raise ConfigError(f"selection strategy {strategy!r}: must be one of {', '.join(get_args(Strategy))}")
    if count < 0:
        raise ValueError(f"count = {count}: must not be negative")
    if strategy == "uniform":
        return tuple(draw_uniform([prompt_id], [len(candidates)], count, seed=seed, step=step)[0].tolist())
    state = _states(prompt_keys([prompt_id]), seed, step)
    tie_breaks = _stream(state, np.arange(len(candidates)))
    if strategy == "diverse":
        order = _diverse_order(candidates, state, tie_breaks)
    else:
        scores = np.array([_SCORES[strategy](candidate) for candidate in candidates], dtype=np.float64)
        order = np.lexsort((tie_breaks, scores))
    return tuple(order[:count].tolist())


def draw_aged(prompt_id: str, ages: ArrayLike, count: int, *, decay: float, seed: int, step: int) -> tuple[int, ...]:
    """Draw min(count, n) of one prompt's n candidates without replacement, with weights e^(−age / decay).

    By the smallest −ln(u) / w (Efraimidis and Spirakis 2006), u from the words of ``draw_uniform``'s stream.
    """
    words = _stream(_states(prompt_keys([prompt_id]), seed, step), np.arange(np.size(ages)))
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
    order = _weighted_order(_states(prompt_keys(ids), seed, step, "questions"), log_weights)
    return [ids[index] for index in order[:count]]


def _weighted_order(words: UInt64Array, log_weights: Float64Array) -> Int64Array:
    """Order of a draw without replacement; logarithms, so that no weight underflows."""
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    return np.argsort(np.log(-np.log(uniform)) - log_weights, kind="stable")


def reasoning_digest(tokens: Int32Array, *, tail: int = 64) -> str:
    """A name for the final reasoning of a response: the hash of its last ``tail`` token ids."""
    final = np.ascontiguousarray(tokens[-tail:], dtype="<i4").tobytes()
    return hashlib.blake2b(final, digest_size=16, person=b"rlep.tail").hexdigest()


@dataclass(frozen=True, slots=True)
class ReplaySchedule:
    """M over the steps."""

    count: int = 2
    """M at the first step."""
    kind: Literal["constant", "linear"] = "constant"
    """``linear`` goes from ``count`` to ``final`` over ``steps`` steps and stays there."""
    final: int = 0
    """M at the end of a linear schedule."""
    steps: int = 0
    """Length of a linear schedule in steps."""

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear"):
            raise ConfigError(f"replay schedule {self.kind!r}: must be constant or linear")
        if self.count < 0 or self.final < 0:
            raise ConfigError(f"replay schedule from {self.count} to {self.final}: neither may be negative")
        if self.kind == "linear" and self.steps < 1:
            raise ConfigError(f"steps = {self.steps}: a linear replay schedule needs its length in steps")

    def at(self, step: int) -> int:
        """M of a step (0, 1, …), rounded half up."""
        if self.kind == "constant":
            return self.count
        done = min(max(step, 0) / self.steps, 1.0)
        return math.floor(self.count + (self.final - self.count) * done + 0.5)


def _mean_logprob(candidate: Candidate) -> float:
    if candidate.logprob is None:
        raise ConfigError(
            "selection by probability needs candidates scored under the current policy; one has no logprob"
        )
    return candidate.logprob


_SCORES: dict[str, Callable[[Candidate], float]] = {
    "shortest": lambda candidate: candidate.length,
    "least-used": lambda candidate: candidate.used,
    "most-probable": lambda candidate: -_mean_logprob(candidate),
    "least-probable": _mean_logprob,
    "recent": lambda candidate: -candidate.created_at,
    "newest": lambda candidate: -candidate.birth,
}


def _diverse_order(candidates: Sequence[Candidate], state: UInt64Array, tie_breaks: UInt64Array) -> Int64Array:
    digests = [candidate.digest for candidate in candidates]
    if "" in digests:
        raise ConfigError("selection 'diverse' needs the digest of every candidate; one has none")
    _, classes = np.unique(np.array(digests, dtype=np.str_), return_inverse=True)
    rounds = np.zeros(len(digests), dtype=np.int64)
    taken: dict[int, int] = {}
    for index in np.argsort(tie_breaks, kind="stable").tolist():
        rounds[index] = taken.get(int(classes[index]), 0)
        taken[int(classes[index])] = int(rounds[index]) + 1
    return np.lexsort((_stream(state, _CLASS_STREAM + classes), rounds)).astype(np.int64)


def _id_bytes(prompt_id: str) -> bytes:
    try:
        raw = bytes.fromhex(prompt_id)
    except ValueError:
        raw = b""
    return raw if len(raw) == 16 else hashlib.blake2b(prompt_id.encode(), digest_size=16, person=b"rlep.draw").digest()


def _states(keys: UInt64Array, seed: int, step: int, draw: str = "replay") -> UInt64Array:
    return _mix(_mix(keys[:, 0] ^ np.uint64(seed_for(seed, draw, step))) ^ keys[:, 1])  # [P]


def _stream(states: UInt64Array, number: Int64Array) -> UInt64Array:
    return _mix(states + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA)


def _mix(words: UInt64Array) -> UInt64Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _scaled(words: UInt64Array, bound: UInt64Array) -> Int64Array:
    """⌊words · bound / 2^64⌋ for bound ≤ 2^32, in two 32-bit halves."""
    low = (words & np.uint64(0xFFFFFFFF)) * bound >> np.uint64(32)
    return (((words >> np.uint64(32)) * bound + low) >> np.uint64(32)).astype(np.int64)
