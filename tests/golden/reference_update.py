"""The RLEP update as plain loops in float64: slow, without torch or numpy, and independent of the package.

Every sequence is a list of tokens; every token a tuple (log-prob, old log-prob, mask). Written from the specification
(arXiv 2507.07451, eq. 4 and 5), not from ``rlep.algorithms``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Token = tuple[float, float, int]
Sequences = Sequence[Sequence[Token]]


def advantages(rewards: Sequence[float], groups: Sequence[int], ddof: int, eps: float, scale: bool) -> list[float]:
    """Eq. 5, one member at a time."""
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [other for other, label in zip(rewards, groups, strict=True) if label == group]
        if min(peers) == max(peers):
            result.append(0.0)
            continue
        mean = math.fsum(peers) / len(peers)
        deviation = math.sqrt(math.fsum((peer - mean) ** 2 for peer in peers) / (len(peers) - ddof))
        result.append((reward - mean) / (deviation + eps) if scale else reward - mean)
    return result


def token_loss(
    logprob: float, old: float, advantage: float, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[float, float]:
    """p of one token, and dp/dlogprob, by cases."""
    ratio = math.exp(max(-20.0, min(20.0, logprob - old)))
    slope = -advantage * ratio if abs(logprob - old) <= 20 else 0.0
    if advantage >= 0:
        return (-advantage * ratio, slope) if ratio <= 1 + clip_high else (-advantage * (1 + clip_high), 0.0)
    if dual_clip is not None and ratio > dual_clip:
        return -advantage * dual_clip, 0.0
    return (-advantage * ratio, slope) if ratio >= 1 - clip_low else (-advantage * (1 - clip_low), 0.0)


def token_weights(
    sequences: Sequences, aggregation: str, groups: Sequence[int], fixed_length: int | None = None
) -> list[float]:
    """What each sequence's tokens are multiplied by, from the definition of each aggregation."""
    lengths = [sum(mask for _, _, mask in sequence) for sequence in sequences]
    filled = sum(length > 0 for length in lengths)
    weights = []
    for length, group in zip(lengths, groups, strict=True):
        if length == 0:
            weights.append(0.0)
        elif aggregation == "token-mean":
            weights.append(1 / sum(lengths))
        elif aggregation == "prompt-token-mean":
            tokens = dict.fromkeys(groups, 0)
            for other, label in zip(lengths, groups, strict=True):
                tokens[label] += other
            prompts = sum(count > 0 for count in tokens.values())
            weights.append(1 / (prompts * tokens[group]))
        elif aggregation == "seq-mean-token-mean":
            weights.append(1 / (filled * length))
        elif aggregation == "seq-mean-token-sum":
            weights.append(1 / filled)
        elif aggregation == "fixed-length" and fixed_length is not None:
            weights.append(1 / (filled * fixed_length))
        else:
            raise AssertionError(aggregation)
    return weights


def policy_loss(
    sequences: Sequences,
    advantages_S: Sequence[float],
    weights: Sequence[float],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 10.0,
) -> tuple[float, list[list[float]]]:
    """Eq. 4: the loss and its gradient with respect to every log-prob."""
    total, gradient = [], []
    for sequence, advantage, weight in zip(sequences, advantages_S, weights, strict=True):
        row = []
        for logprob, old, mask in sequence:
            if not mask:
                row.append(0.0)
                continue
            value, slope = token_loss(
                logprob, old, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
            )
            total.append(weight * value)
            row.append(weight * slope)
        gradient.append(row)
    return math.fsum(total), gradient
