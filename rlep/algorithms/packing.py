"""Columnar batches of whole groups, and their division into ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlep.core.types import BoolArray, Float32Array, Float64Array, Group, Int64Array, Prompt, SequenceBatch, Trajectory

Assignment = tuple[tuple[Int64Array, ...], ...]
"""``[ranks][micro-batches]`` arrays of sequence indices; every rank has the same number of micro-batches."""


def sequence_batch(
    groups: Sequence[Group],
    advantages: ArrayLike,
    *,
    trained: ArrayLike | None = None,
    regularised: BoolArray | None = None,
    counted: BoolArray | None = None,
) -> SequenceBatch:
    """Lay whole groups end to end, members in the order of ``Group.members``.

    Args:
        advantages: ``[S]`` finite numbers, in that order.
        trained: ``[S]``; False takes a sequence out of the policy's loss; all True by default.
        regularised: ``[S]``; False takes one out of KL and entropy; None: those trained.
        counted: ``[S]``; False takes one out of the counts behind the policy's mean; None: those trained.

    Behaviour log-probs are NaN for the tokens of a trajectory without any, and None where no trajectory has some.
    """
    answers = [(group.prompt, member) for group in groups for member in group.members]
    count = len(answers)
    values = np.asarray(advantages, dtype=np.float64)
    keep = np.ones(count, np.bool_) if trained is None else np.asarray(trained, dtype=np.bool_)
    for name, array in (("advantages", values), ("trained", keep)):
        if array.shape != (count,):
            raise ValueError(f"{name} of shape {array.shape} for {len(groups)} groups of {count} sequences in all")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"advantages[{at}] = {values[at]}: every advantage must be finite")
    return replace(
        answer_batch(answers),
        advantages=values.astype(np.float32),
        trained=keep,
        groups=np.repeat(np.arange(len(groups), dtype=np.int32), [len(group.members) for group in groups]),
        replayed=np.concatenate([_replayed(group) for group in groups]) if groups else np.zeros(0, np.bool_),
        regularised=regularised,
        counted=counted,
    )


def answer_batch(answers: Sequence[tuple[Prompt, Trajectory]]) -> SequenceBatch:
    """Stored responses laid end to end, to be scored or imitated: each a group of its own, with advantage 0."""
    pieces = [piece for prompt, member in answers for piece in (prompt.tokens, member.tokens)]
    lengths = [len(prompt.tokens) + len(member.tokens) for prompt, member in answers]
    return replace(
        plain_batch(np.concatenate(pieces) if pieces else (), lengths, [len(prompt.tokens) for prompt, _ in answers]),
        replayed=np.ones(len(answers), np.bool_),
        behaviour_logprobs=_behaviour([member for _, member in answers]),
        sampled=_sampled(answers),
    )


def plain_batch(tokens: ArrayLike, lengths: ArrayLike, prompt_lengths: ArrayLike) -> SequenceBatch:
    """Lay sequences end to end: fresh and trained ones, each a group of its own, with advantage 0.

    Args:
        tokens: ``[N]``.
        lengths: of the sequences, prompts included, ``[S]``.
        prompt_lengths: ``[S]``.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    return SequenceBatch(
        tokens=np.asarray(tokens, dtype=np.int32),
        offsets=np.concatenate([np.zeros(1, np.int64), ends]),
        prompt_lengths=np.asarray(prompt_lengths, dtype=np.int32),
        advantages=np.zeros(len(ends), np.float32),
        trained=np.ones(len(ends), np.bool_),
        groups=np.arange(len(ends), dtype=np.int32),
        replayed=np.zeros(len(ends), np.bool_),
    )


def take(batch: SequenceBatch, indices: ArrayLike) -> SequenceBatch:
    """The sequences at ``indices``, in that order, with every per-sequence and per-token array cut alike."""
    chosen = np.asarray(indices, dtype=np.int64)
    starts, lengths = batch.offsets[:-1][chosen], np.diff(batch.offsets)[chosen]
    sampled = batch.sampled_lengths
    sampled_starts = np.concatenate([[0], np.cumsum(sampled)])[:-1][chosen]
    within, at = spans(starts, lengths), spans(sampled_starts, sampled[chosen])  # [N], [R]
    return SequenceBatch(
        tokens=batch.tokens[within],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=batch.prompt_lengths[chosen],
        advantages=batch.advantages[chosen],
        trained=batch.trained[chosen],
        groups=batch.groups[chosen],
        replayed=batch.replayed[chosen],
        old_logprobs=None if batch.old_logprobs is None else batch.old_logprobs[at],
        behaviour_logprobs=None if batch.behaviour_logprobs is None else batch.behaviour_logprobs[at],
        regularised=None if batch.regularised is None else batch.regularised[chosen],
        counted=None if batch.counted is None else batch.counted[chosen],
        sampled=None if batch.sampled is None else batch.sampled[within],
    )


def spans(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """The concatenation of ``arange(start, start + length)`` over all pairs, ``[sum(lengths)]``."""
    shift = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(shift, lengths) + np.arange(lengths.sum(), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a micro-batch, and the cost of a sequence."""

    tokens: int
    """Most tokens (prompts and responses) in a micro-batch; a longer sequence stands alone."""
    attention_length: int = 24_576
    """Length at which attention costs as much as the matrix products: about 6 × the hidden size."""

    def cost(self, lengths: NDArray[np.int64]) -> Float64Array:
        """Compute of sequences, in units of one token's matrix products: l + l² / attention_length."""
        return lengths + lengths.astype(np.float64) ** 2 / self.attention_length


def pack(batch: SequenceBatch, ranks: int, budget: Budget, chosen: BoolArray | None = None) -> Assignment:
    """Divide one update's sequences, or the ``chosen`` ``[S]``, over ranks and micro-batches; a pure function of the lengths.

    Every rank gets the same number of micro-batches, so that collectives stay in step; micro-batch i is of like cost
    on every rank. Micro-batches are empty where there are too few sequences. No sequence is lost or split.
    """
    lengths = np.diff(batch.offsets)
    costs = budget.cost(lengths)
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    order = order if chosen is None else order[chosen[order]]
    tight = _first_fit(order, lengths, budget.tokens)
    steps = max(1, -(-len(tight) // ranks))
    bins = _balanced(order, lengths, costs, steps * ranks, budget.tokens) or tight
    bins = [*bins, *([] for _ in range(steps * ranks - len(bins)))]
    return _deal(bins, costs, ranks)


def _first_fit(order: Int64Array, lengths: Int64Array, budget: int) -> list[list[int]]:
    """First-fit decreasing: few bins of at most ``budget`` tokens; longer sequences stand alone."""
    bins: list[list[int]] = []
    room = np.zeros(len(order), dtype=np.int64)
    for index in order:
        fits = np.flatnonzero(room[: len(bins)] >= lengths[index])
        if fits.size:
            bins[fits[0]].append(int(index))
            room[fits[0]] -= lengths[index]
        else:
            room[len(bins)] = budget - lengths[index]
            bins.append([int(index)])
    return bins


def _balanced(
    order: Int64Array, lengths: Int64Array, costs: Float64Array, count: int, budget: int
) -> list[list[int]] | None:
    """Longest first into the cheapest of ``count`` bins that has room; None where that runs out of room."""
    bins: list[list[int]] = [[] for _ in range(count)]
    room, load = np.full(count, budget), np.zeros(count)
    empty = np.ones(count, dtype=np.bool_)
    for index in order:
        fits = np.flatnonzero((room >= lengths[index]) | empty)
        if not fits.size:
            return None
        chosen = fits[np.argmin(load[fits])]
        bins[chosen].append(int(index))
        room[chosen] -= lengths[index]
        load[chosen] += costs[index]
        empty[chosen] = False
    return bins


def _deal(bins: list[list[int]], costs: Float64Array, ranks: int) -> Assignment:
    """Bins of like cost run side by side; within such a row the heaviest goes to the rank with the least work."""
    work = [float(costs[members].sum()) if members else 0.0 for members in bins]
    order = sorted(range(len(bins)), key=lambda index: (-work[index], index))
    dealt: list[list[Int64Array]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for start in range(0, len(order), ranks):
        row = order[start : start + ranks]
        for rank, index in zip(sorted(range(ranks), key=lambda rank: (load[rank], rank)), row, strict=True):
            dealt[rank].append(np.array(sorted(bins[index]), dtype=np.int64))
            load[rank] += work[index]
    return tuple(tuple(micro_batches) for micro_batches in dealt)


def _replayed(group: Group) -> BoolArray:
    return np.arange(len(group.members)) >= len(group.fresh)


def _behaviour(members: Sequence[Trajectory]) -> Float32Array | None:
    if all(member.logprobs is None for member in members):
        return None
    unknown = np.float32(np.nan)
    parts = [np.full(m.sampled_length, unknown) if m.logprobs is None else m.at_sampled(m.logprobs) for m in members]
    return np.concatenate(parts).astype(np.float32, copy=False)


def _sampled(answers: Sequence[tuple[Prompt, Trajectory]]) -> BoolArray | None:
    if all(member.sampled is None for _, member in answers):
        return None
    parts = [
        part
        for prompt, member in answers
        for part in (
            np.zeros(len(prompt.tokens), np.bool_),
            np.ones(len(member.tokens), np.bool_) if member.sampled is None else member.sampled,
        )
    ]
    return np.concatenate(parts)
