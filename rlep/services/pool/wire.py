"""What crosses the wire: frames of a sample made and put together, within the sizes both sides keep to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlep.errors import PoolError
from rlep.services.pool.proto import pool_pb2 as pb
from rlep.services.pool.sample import Part, Sample
from rlep.types import Float32Array, Int32Array

RECORDS_A_FRAME = 64
SERVICE: str = pb.DESCRIPTOR.services_by_name["Pool"].full_name
RECORDS_A_CALL = 512
"""Most records of one insert."""
CALL_BYTES = 1 << 26
"""Most bytes of one insert, all frames together."""
FRAME_BYTES = 1 << 22
"""A frame that has reached this is sent."""
MESSAGE_BYTES = 1 << 24
"""Largest message; the largest record takes half of it."""
ERROR_KEY = "rlep-error"
"""Trailing metadata with the name of the error."""
RETRY_KEY = "rlep-retry-after"
"""Trailing metadata with the seconds after which a call that came too soon is taken."""

_ID_BYTES = 16
_RECORD_OVERHEAD = 256  # bytes of a record's prompt id and framing at most


def insert_calls(records: Sequence[pb.Record]) -> Iterator[list[pb.AddFrame]]:
    """Records in frames, the frames in calls, each within its limits."""
    frames, count, size = [pb.AddFrame()], 0, 0
    framed = 0
    for record in records:
        more = len(record.record) + _RECORD_OVERHEAD
        if count == RECORDS_A_CALL or size + more > CALL_BYTES:
            yield frames
            frames, count, size, framed = [pb.AddFrame()], 0, 0, 0
        elif len(frames[-1].records) == RECORDS_A_FRAME or framed + more > FRAME_BYTES:
            frames.append(pb.AddFrame())
            framed = 0
        frames[-1].records.append(record)
        count, size, framed = count + 1, size + more, framed + more
    if count:
        yield frames


def sample_frames(part: Part) -> Iterator[pb.SampleFrame]:
    """A part as frames of about ``FRAME_BYTES`` at most."""
    start = size = first = end = 0
    a_token = 4 + part.logprobs.dtype.itemsize
    for at, (length, details) in enumerate(zip(part.lengths, part.details, strict=True)):
        more = a_token * length + len(details)
        if at > start and size + more > FRAME_BYTES:
            yield _frame(part, slice(start, at), slice(first, end))
            start, size, first = at, 0, end
        size, end = size + more, end + length
    if start < len(part.lengths):
        yield _frame(part, slice(start, None), slice(first, end))


def _frame(part: Part, records: slice, tokens: slice) -> pb.SampleFrame:
    details, logprobs = part.details[records], part.logprobs[tokens]
    return pb.SampleFrame(
        ids=b"".join(part.ids[records]),
        lengths=_int32(part.lengths[records]),
        tokens=part.tokens[4 * tokens.start : 4 * tokens.stop],
        logprobs=logprobs.tobytes(),
        half=logprobs.dtype.itemsize == 2,
        finished=bytes(part.finished[records]),
        detail_lengths=_int32(list(map(len, details))),
        details=b"".join(details),
    )


def sample_of(prompt_ids: Sequence[str], frames: Iterable[pb.SampleFrame]) -> Sample:
    """The sample whose frames these are, taken apart as they arrive.

    Raises ``PoolError`` where their columns do not fit together.
    """
    heads, parts = list[tuple[bytes, ...]](), list[tuple[bytes, Float32Array]]()
    for frame in frames:
        heads.append((frame.counts, frame.lengths, frame.ids, frame.finished, frame.detail_lengths, frame.details))
        logprobs = np.frombuffer(frame.logprobs, "<f2" if frame.half else "<f4").astype(np.float32)
        parts.append((frame.tokens, logprobs))
    counts, lengths, ids, finished, detail_lengths, details = (
        (b"".join(column) for column in zip(*heads, strict=True)) if heads else repeat(b"", 6)
    )
    tokens = np.frombuffer(b"".join([tokens for tokens, _ in parts]), "<i4").astype(np.int32, copy=False)  # [N]
    sample = Sample(
        tuple(prompt_ids),
        np.frombuffer(counts, "<i4").astype(np.int32),
        tuple(_divided(ids.hex(), np.full(len(ids) // _ID_BYTES, 2 * _ID_BYTES))),
        np.concatenate([[0], np.cumsum(np.frombuffer(lengths, "<i4"), dtype=np.int64)]),
        tokens,
        np.concatenate([np.zeros(0, np.float32), *[logprobs for _, logprobs in parts]]),
        np.frombuffer(finished, np.bool_),
        tuple(_divided(details, np.frombuffer(detail_lengths, "<i4"))),
    )
    _check_fit(sample)
    return sample


def _check_fit(sample: Sample) -> None:
    """Refuse columns that are not those of one sample."""
    prompts, drawn, held = len(sample.prompt_ids), len(sample.ids), int(sample.offsets[-1])
    if len(sample.counts) != prompts or int(sample.counts.sum()) != drawn or sample.counts.min(initial=0) < 0:
        raise PoolError(f"a sample of {prompts} prompts arrived with {len(sample.counts)} counts, {drawn} records")
    if {len(sample.offsets) - 1, len(sample.finished), len(sample.details)} != {drawn}:
        raise PoolError(f"a sample of {drawn} records arrived with other numbers of lengths, ends or details")
    if len(sample.tokens) != held or len(sample.logprobs) != held or np.diff(sample.offsets).min(initial=0) < 0:
        raise PoolError(
            f"a sample of {held} tokens arrived with {len(sample.tokens)}, {len(sample.logprobs)} log-probs"
        )


T = TypeVar("T", str, bytes)


def _divided(column: T, lengths: NDArray[np.integer[Any]]) -> list[T]:
    """A column cut into pieces of these lengths."""
    bounds: list[int] = np.cumsum(lengths).tolist()
    return [column[start:end] for start, end in zip([0, *bounds], bounds, strict=False)]


def _int32(values: list[int]) -> bytes:
    return np.array(values, "<i4").tobytes()


def counts_bytes(counts: Int32Array) -> bytes:
    """The counts column of a sample's first frame."""
    return counts.astype("<i4").tobytes()
