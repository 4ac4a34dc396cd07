"""The old log-probs of replayed tokens: what the ratio of eq. 4 is taken against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from rlep.core.errors import ConfigError, MixingError
from rlep.core.types import Float32Array, Sampling, SequenceBatch, Trajectory

OldLogprobs = Literal["recompute", "behaviour", "unit"]
"""``recompute``: under θ0, like fresh tokens, so the ratio starts at 1 (the authors). ``behaviour``: as stored, under
the policy that generated the response. ``unit``: probability 1, so the ratio is π itself (LUFFY, arXiv 2504.14945)."""


def old_logprobs(
    mode: OldLogprobs,
    batch: SequenceBatch,
    members: Sequence[Trajectory],
    recomputed: Float32Array,
    *,
    tokenizer_digest: str,
) -> Float32Array:
    """Old log-probs of every response token ``[R]``; fresh tokens always keep the recomputed ones.

    Args:
        batch: S sequences.
        members: their trajectories ``[S]``.
        recomputed: log-probs under θ0 ``[R]``, from the learner's own forward pass.

    Raises:
        ConfigError: an unknown mode.
        MixingError: ``behaviour`` with a replay whose stored log-probs are not comparable; the message says why.
    """
    if mode not in get_args(OldLogprobs):
        raise ConfigError(f"old log-probs {mode!r}: must be one of {', '.join(get_args(OldLogprobs))}")
    lengths = batch.response_lengths
    if len(members) != len(batch) or recomputed.shape != (int(lengths.sum()),):
        raise ValueError(
            f"{len(members)} members and {len(recomputed)} log-probs for a batch of {len(batch)} sequences"
            f" and {int(lengths.sum())} response tokens"
        )
    if mode == "recompute":
        return recomputed
    result = recomputed.astype(np.float32, copy=True)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for index in np.flatnonzero(batch.replayed):
        span = slice(int(starts[index]), int(starts[index + 1]))
        result[span] = 0.0 if mode == "unit" else stored_logprobs(members[index], tokenizer_digest)
    return result


def stored_logprobs(trajectory: Trajectory, tokenizer_digest: str) -> Float32Array:
    """The behaviour log-probs of a pool record ``[T]``, refused where they may not be compared with the learner's."""
    reason = incomparable(trajectory, tokenizer_digest)
    if reason or trajectory.logprobs is None:
        raise MixingError(
            f"prompt {trajectory.prompt_id}: the stored log-probs of replay {trajectory.content_id} are not comparable:"
            f" {reason}; use old log-probs 'recompute'"
        )
    return trajectory.logprobs


def incomparable(trajectory: Trajectory, tokenizer_digest: str) -> str:
    """Why a record's log-probs may not be compared with a learner's at temperature 1; empty where they may.

    bfloat16 log-probs are off by up to 13 % in the ratio; raw log-probs of a sampler at another temperature or with a
    cut distribution are not those of the policy that sampled.
    """
    provenance, sampling = trajectory.provenance, trajectory.provenance.sampling
    plain = Sampling()
    checks = (
        (trajectory.logprobs is not None, "none were stored"),
        (provenance.tokenizer_digest == tokenizer_digest, f"tokenizer {provenance.tokenizer_digest!r}"),
        (provenance.logprobs_mode == "raw", f"mode {provenance.logprobs_mode!r}, not raw"),
        (provenance.logprobs_dtype != "bfloat16", "computed in bfloat16"),
        (sampling.temperature == plain.temperature, f"sampled at temperature {sampling.temperature}, not 1"),
        (sampling.top_p == plain.top_p, f"sampled with top_p {sampling.top_p}, not 1"),
        (sampling.top_k == plain.top_k, f"sampled with top_k {sampling.top_k}, not off"),
    )
    return ", ".join(reason for comparable, reason in checks if not comparable)
