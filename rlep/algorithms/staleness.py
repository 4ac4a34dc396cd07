"""The policy lag of fresh tokens, and the truncated importance weights that correct it.

The objective is the decoupled one of AReaL (arXiv 2505.24298): the ratio that is clipped stands against the
proximal policy θ0, the learner's at the start of the step, and each token weighs min(π_θ0 / π_sampler, cap), where the
sampler is the version that generated the token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlep.core.types import Float64Array, Int64Array, SequenceBatch, Trajectory


def token_staleness(trajectories: Sequence[Trajectory], policy_version: int) -> Int64Array:
    """Policy lag of every token in versions ``[R]``: 0 where ``policy_version`` itself generated it."""
    versions = [
        np.full(len(one.tokens), one.provenance.policy_version) if one.token_versions is None else one.token_versions
        for one in trajectories
    ]
    return policy_version - np.concatenate(versions).astype(np.int64)


def importance_weights(batch: SequenceBatch, cap: float) -> Float64Array:
    """Weights of the fresh trained tokens, in their order, as ``loss_terms.truncated_importance`` takes them.

    Raises ``ValueError`` where the batch lacks old or behaviour log-probs.
    """
    if batch.old_logprobs is None or batch.behaviour_logprobs is None:
        raise ValueError("importance weights need the old and the behaviour log-probs of a batch")
    rows = np.repeat(batch.trained & ~batch.replayed, batch.response_lengths)
    difference = batch.old_logprobs[rows].astype(np.float64) - batch.behaviour_logprobs[rows].astype(np.float64)
    return np.minimum(np.exp(np.clip(difference, -20.0, 20.0)), cap)
