"""The columns of a sample: what a draw returns, in this process, through Ray, or over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlep.errors import RecordRefused
from rlep.services.pool.codec import Record, Sections, parse, rebuild, split
from rlep.types import BoolArray, Float32Array, Int32Array, Int64Array, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Drawn trajectories as columns: P prompts, K trajectories, N tokens, in the order of the prompts asked for.

    Worked example, three prompts, the second not eligible: ``counts = [2, 0, 1]``, so K = 3; answers of 3, 1 and 2
    tokens: ``offsets = [0, 3, 4, 6]``, N = 6. Trajectory k is ``tokens[offsets[k]:offsets[k + 1]]``.
    """

    prompt_ids: tuple[str, ...]
    """``[P]``"""
    counts: Int32Array
    """``[P]``: trajectories given for each prompt, 0 where it is not eligible."""
    ids: tuple[str, ...]
    """``[K]``: content ids."""
    offsets: Int64Array
    """``[K + 1]``"""
    tokens: Int32Array
    """``[N]``"""
    logprobs: Float32Array
    """``[N]``: behaviour log-probs, NaN where they were never known."""
    finished: BoolArray
    """``[K]``: whether the response ended with its EOS."""
    details: tuple[bytes, ...]
    """``[K]``: packed verdict, provenance and metadata, which ``trajectories`` unpacks."""

    def trajectories(self) -> dict[str, tuple[Trajectory, ...]]:
        """For each prompt asked for, its trajectories. Their arrays are views of the columns."""
        every = iter(range(len(self.ids)))
        return {
            prompt_id: tuple(self._trajectory(next(every), prompt_id) for _ in range(count))
            for prompt_id, count in zip(self.prompt_ids, self.counts.tolist(), strict=True)
        }

    def _trajectory(self, k: int, prompt_id: str) -> Trajectory:
        part = slice(self.offsets[k], self.offsets[k + 1])
        logprobs = self.logprobs[part]
        known = None if np.isnan(logprobs[0]) else logprobs
        return rebuild(Record(self.tokens[part], known, bool(self.finished[k]), self.details[k]), prompt_id)


def columns(prompt_ids: Sequence[str], counts: Int32Array, ids: Sequence[bytes], blobs: Sequence[bytes]) -> Sample:
    """The sample that these records make. Raises ``RecordRefused``, naming the trajectory, where one is damaged."""
    try:
        sections = list(map(split, blobs))
    except RecordRefused:
        raise _blamed(ids, blobs) from None
    offsets = np.zeros(len(sections) + 1, np.int64)
    np.cumsum([section.length for section in sections], out=offsets[1:])
    tokens = np.frombuffer(b"".join([section.tokens for section in sections]), "<i4").astype(np.int32, copy=False)
    logprobs, all_finite = _joined_logprobs(sections, offsets)
    if not all_finite or tokens.min(initial=0) < 0:
        raise _blamed(ids, blobs)
    return Sample(
        tuple(prompt_ids),
        counts,
        tuple([content_id.hex() for content_id in ids]),
        offsets,
        tokens,
        logprobs,
        np.array([section.finished for section in sections], np.bool_),
        tuple([section.details for section in sections]),
    )


def _joined_logprobs(sections: Sequence[Sections], offsets: Int64Array) -> tuple[Float32Array, bool]:
    """Log-probs of all records ``[N]``, NaN where unknown, and whether all known ones are finite."""
    dtypes = {section.dtype for section in sections}
    if len(dtypes) == 1 and (dtype := dtypes.pop()) is not None:
        joined = np.frombuffer(b"".join([section.logprobs for section in sections]), dtype).astype(np.float32)  # [N]
        return joined, bool(np.isfinite(joined).all())
    joined, all_finite = np.full(offsets[-1], np.nan, np.float32), True
    for section, start, end in zip(sections, offsets.tolist(), offsets[1:].tolist(), strict=False):
        if section.dtype is not None:
            joined[start:end] = np.frombuffer(section.logprobs, section.dtype)
            all_finite &= bool(np.isfinite(joined[start:end]).all())
    return joined, all_finite


def _blamed(ids: Sequence[bytes], blobs: Sequence[bytes]) -> RecordRefused:
    """Says which of these records is damaged, and how."""
    for content_id, blob in zip(ids, blobs, strict=True):
        try:
            parse(blob)
        except RecordRefused as error:
            return RecordRefused(f"trajectory {content_id.hex()}: {error}")
    raise AssertionError("records that are damaged together are not damaged one by one")
