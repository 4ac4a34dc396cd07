"""Choice of M of a prompt's n stored responses.

Every choice is a pure function of (run seed, step, prompt id) and the candidates: the same in any order of prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlep.config.replay import Selection
from rlep.core.draws import UInt64Array, draw_uniform, keyed_states, prompt_keys, random_words
from rlep.core.errors import ConfigError
from rlep.core.types import Int32Array, Int64Array, Trajectory

_CLASS_STREAM = 1 << 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """Properties of a stored response that a strategy may use."""

    length: int
    """Tokens that the policy sampled."""
    created_at: float
    """Seconds since the epoch."""
    used: int = 0
    """Number of times it has been drawn."""
    logprob: float | None = None
    """Mean log-prob per token under the current policy, where it has been scored."""
    birth: int = -1
    """The step of this run that it comes from; −1: of another."""
    digest: str = ""
    """Names its final reasoning; equal digests count as the same solution (``reasoning_digest``)."""

    @classmethod
    def of(cls, member: Trajectory, *, used: int = 0, logprob: float | None = None) -> Candidate:
        """The properties of a stored response."""
        digest = reasoning_digest(member.at_sampled(member.tokens))
        return cls(member.sampled_length, member.created_at, used, logprob, member.birth, digest)


def select(
    strategy: Selection, candidates: Sequence[Candidate], count: int, *, prompt_id: str, seed: int, step: int
) -> tuple[int, ...]:
    """Choose min(count, n) of one prompt's n candidates; ties are broken uniformly by the same seeded hash.

    ``uniform`` gives what ``draw_uniform`` gives. ``diverse`` takes a random response of each of as many distinct
    digests as it can, the digests drawn uniformly, before it takes a second of any.

    Raises:
        ConfigError: a strategy whose input the candidates lack.
    """
    if strategy == "uniform":
        return tuple(draw_uniform([prompt_id], [len(candidates)], count, seed=seed, step=step)[0].tolist())
    state = keyed_states(prompt_keys([prompt_id]), seed, step)
    tie_breaks = random_words(state, np.arange(len(candidates)))
    if strategy == "diverse":
        order = _diverse_order(candidates, state, tie_breaks)
    else:
        scores = np.array([_SCORES[strategy](candidate) for candidate in candidates], dtype=np.float64)
        order = np.lexsort((tie_breaks, scores))
    return tuple(order[:count].tolist())


def reasoning_digest(tokens: Int32Array, *, tail: int = 64) -> str:
    """A name for the final reasoning of a response: the hash of its last ``tail`` token ids."""
    final = np.ascontiguousarray(tokens[-tail:], dtype="<i4").tobytes()
    return hashlib.blake2b(final, digest_size=16, person=b"rlep.tail").hexdigest()


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
    return np.lexsort((random_words(state, _CLASS_STREAM + classes), rounds)).astype(np.int64)
