"""The columns of a sample: what a draw returns, in this process, through Ray, or over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlep.core.errors import RecordRefused
from rlep.core.types import BoolArray, Float32Array, Int32Array, Int64Array, Trajectory, beyond_vocabulary
from rlep.services.pool.storage.codec import Record, Sections, check, rebuild, split, split_all

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Sample(Mapping[str, Sequence[Trajectory]]):
    """Drawn trajectories as columns, or by prompt id: P prompts, K trajectories, N tokens, in the order of the prompts asked for.

    Worked example, three prompts, the second not eligible: ``counts = [2, 0, 1]``, so K = 3; responses of 3, 1 and 2
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
    available: Int32Array
    """``[P]``: trajectories that the pool has for each prompt."""
    minimum: int
    """A prompt with fewer trajectories gave none."""

    @property
    def below_minimum(self) -> tuple[str, ...]:
        """Prompts that gave none because the pool has fewer than ``minimum`` trajectories for them, or none at all."""
        few = self.available < self.minimum
        return tuple(prompt_id for prompt_id, below in zip(self.prompt_ids, few.tolist(), strict=True) if below)

    def checked(self, vocabulary: int | None) -> Sample:
        """This sample. Raises ``RecordRefused`` for a token id beyond ``vocabulary`` (None: unknown)."""
        if wrong := beyond_vocabulary(self.tokens, vocabulary):
            record = int(np.searchsorted(self.offsets, self.tokens.argmax(), "right")) - 1
            prompt = int(np.searchsorted(np.cumsum(self.counts), record, "right"))
            raise RecordRefused(
                f"trajectory {self.ids[record]} of prompt {self.prompt_ids[prompt]}: {wrong}; "
                "rlep pool prune --damaged removes such records"
            )
        return self

    def __getitem__(self, prompt_id: str) -> Sequence[Trajectory]:
        if prompt_id not in self.prompt_ids:
            raise KeyError(prompt_id)
        at = self.prompt_ids.index(prompt_id)
        start = int(self.counts[:at].sum())
        return tuple(self.member(k, prompt_id) for k in range(start, start + int(self.counts[at])))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(self.prompt_ids))

    def __len__(self) -> int:
        return len(set(self.prompt_ids))

    def trajectories(self) -> dict[str, tuple[Trajectory, ...]]:
        """For each prompt asked for, its trajectories. Their arrays are views of the columns."""
        every = iter(range(len(self.ids)))
        return {
            prompt_id: tuple(self.member(next(every), prompt_id) for _ in range(count))
            for prompt_id, count in zip(self.prompt_ids, self.counts.tolist(), strict=True)
        }

    def member(self, k: int, prompt_id: str) -> Trajectory:
        """Trajectory k, of this prompt. Its arrays are views of the columns."""
        part = slice(self.offsets[k], self.offsets[k + 1])
        logprobs = self.logprobs[part]
        # NaN only stands for unknown here: log-probs that a record has are finite.
        known = None if np.isnan(logprobs[0]) else logprobs
        return rebuild(Record(self.tokens[part], known, bool(self.finished[k]), self.details[k]), prompt_id)


class Stored(NamedTuple):
    """Some of a sample's trajectories as they are stored."""

    ids: Sequence[bytes]
    """``[K]``: content ids."""
    blobs: Sequence[bytes]
    """``[K]``: records."""

    def part(self) -> Part:
        """The same as columns. Raises ``RecordRefused``, naming the damaged trajectory."""
        try:
            sections = split_all(self.blobs)
        except RecordRefused:
            raise _blamed(self.ids, self.blobs, split) from None
        return part_of(self.ids, sections)


class Part(NamedTuple):
    """Some of a sample's trajectories as columns: K trajectories, N tokens."""

    ids: Sequence[bytes]
    """``[K]``: content ids."""
    lengths: list[int]
    """``[K]``: tokens."""
    tokens: bytes
    """``[N]`` little-endian int32."""
    logprobs: NDArray[np.floating[Any]]
    """``[N]``, float16 where all are; NaN where they were never known."""
    finished: list[bool]
    """``[K]``"""
    details: list[bytes]
    """``[K]``"""


def part_of(ids: Sequence[bytes], records: Sequence[Sections]) -> Part:
    """The columns of these records. Raises ``RecordRefused``, naming a trajectory whose values cannot be."""
    if not records:
        return Part(ids, [], b"", np.zeros(0, np.float32), [], [])
    lengths, token_parts, dtypes, logprob_parts, finished, details = map(list, zip(*records, strict=True))
    tokens, kinds = b"".join(token_parts), set(dtypes)
    if len(kinds) == 1 and (dtype := dtypes[0]) is not None:
        logprobs = known = np.frombuffer(b"".join(logprob_parts), dtype)
    else:
        logprobs, known = _mixed(records)
    # All at once; which record it was is looked for only where one is wrong.
    if not _finite(known) or np.frombuffer(tokens, "<i4").min() < 0:
        raise _blamed(ids, records, check)
    return Part(ids, lengths, tokens, logprobs, finished, details)


def columns(
    prompt_ids: Sequence[str],
    counts: Int32Array,
    parts: Sequence[Part],
    eligible: tuple[Int32Array, int],
) -> Sample:
    """The sample that these parts make; ``eligible``: its ``available`` and ``minimum``."""
    lengths = [length for part in parts for length in part.lengths]
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    tokens, logprobs = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
    start = 0
    for part in parts:
        end = start + len(part.logprobs)
        tokens[start:end] = np.frombuffer(part.tokens, "<i4")
        logprobs[start:end] = part.logprobs
        start = end
    return Sample(
        tuple(prompt_ids),
        counts,
        tuple([content_id.hex() for part in parts for content_id in part.ids]),
        offsets,
        tokens,
        logprobs,
        np.array([ended for part in parts for ended in part.finished], np.bool_),
        tuple([details for part in parts for details in part.details]),
        *eligible,
    )


def _mixed(records: Sequence[Sections]) -> tuple[Float32Array, Float32Array]:
    """Log-probs of records of several kinds: all with NaN where unknown, and the known ones."""
    parts = [
        np.full(record.length, np.nan, np.float32)
        if record.dtype is None
        else np.frombuffer(record.logprobs, record.dtype).astype(np.float32)
        for record in records
    ]
    empty = np.zeros(0, np.float32)
    known = [part for part, record in zip(parts, records, strict=True) if record.dtype is not None]
    return np.concatenate([empty, *parts]), np.concatenate([empty, *known])


def _finite(values: NDArray[np.floating[Any]]) -> bool:
    """Tell whether all values are finite. In float16 by their exponent bits: numpy would convert each, 14 times slower."""
    if values.dtype.itemsize == 2:
        return not ((values.view("<u2") & 0x7C00) == 0x7C00).any()
    return bool(np.isfinite(values).all())


def _blamed(ids: Sequence[bytes], records: Sequence[T], checked: Callable[[T], object]) -> RecordRefused:
    """Says which of these records is damaged, and how."""
    for content_id, record in zip(ids, records, strict=True):
        try:
            checked(record)
        except RecordRefused as error:
            return RecordRefused(f"trajectory {content_id.hex()}: {error}")
    raise AssertionError("records that are damaged together are not damaged one by one")
