"""Frames on the wire: those of a sample are made and put together, within the sizes both sides keep to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rlep.core.errors import PoolError
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.storage.draw import Drawn
from rlep.services.pool.storage.sample import Part, Sample, Stored, columns
from rlep.services.pool.storage.scan import Held

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
SMALL_BYTES = 1 << 20
"""Largest request but of ``Add``, ``Sample`` and ``Fetch``."""
LONGEST_CALL = 600.0
"""Seconds: a server refuses a call with a later deadline, or none."""
LONGEST_DEADLINE = 540.0
"""Seconds that a client asks for at most, as ``pool.deadline_s``: gRPC rounds the time of a call up on its way."""
PROMPTS_A_CALL = 4096
"""Most prompts that a client names in a listing or an export."""
RECORDS_A_PAGE, PAGE_BYTES = 1024, 1 << 25
"""A page of an export ends with the record that reaches one of these."""
ERROR_KEY = "rlep-error"
"""Trailing metadata with the name of the error."""

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


def export_frames(records: Iterable[Held], limit: int) -> Iterator[pb.ExportFrame]:
    """A page of records in frames, the last of which says where the next page begins."""
    frame, framed, paged = pb.ExportFrame(), 0, 0
    for number, held in enumerate(records, start=1):
        size = len(held.record)
        if framed and framed + size > FRAME_BYTES:
            yield frame
            frame, framed = pb.ExportFrame(), 0
        frame.records.append(pb.Record(**held._asdict()))
        framed, paged = framed + size, paged + size
        if number >= limit or paged >= PAGE_BYTES:
            # Where this was the last record of all, the next page is empty.
            frame.next = held.place
            break
    yield frame


def sample_frames(part: Stored) -> Iterator[pb.SampleFrame]:
    """A part as frames of about ``FRAME_BYTES`` at most."""
    sizes = list(map(len, part.blobs))
    for records in _framed(sizes):
        lengths = np.array(sizes[records], "<i4").tobytes()
        ids, blobs = b"".join(part.ids[records]), b"".join(part.blobs[records])
        yield pb.SampleFrame(ids=ids, record_lengths=lengths, records=blobs)


def _framed(sizes: Sequence[int]) -> Iterator[slice]:
    """Return the records that go into each frame."""
    start = together = 0
    for at, size in enumerate(sizes):
        if at > start and together + size > FRAME_BYTES:
            yield slice(start, at)
            start, together = at, 0
        together += size
    if start < len(sizes):
        yield slice(start, None)


def sample_of(prompt_ids: Sequence[str], frames: Iterable[pb.SampleFrame]) -> Sample:
    """The sample whose frames these are, taken apart as they arrive.

    Raises ``PoolError`` where their columns do not fit together, ``RecordRefused`` for a damaged record.
    """
    arriving = iter(frames)
    first = next(arriving, pb.SampleFrame())
    given, available = (np.array(_numbers(column), np.int32) for column in (first.counts, first.available))
    drawn, wanted, parts = len(first.ids) // _ID_BYTES, int(given.sum(dtype=np.int64)), [_part(first)]
    # Of a server that sends without an end no more is read than its first frame says.
    while drawn < wanted and (frame := next(arriving, None)) is not None and frame.ids and not frame.counts:
        parts.append(_part(frame))
        drawn += len(parts[-1].ids)
    if len(given) != len(prompt_ids) or wanted != drawn or given.min(initial=0) < 0 or next(arriving, None) is not None:
        raise PoolError(f"a sample of {len(prompt_ids)} prompts arrived with {len(given)} counts, {drawn} records")
    if len(available) != len(prompt_ids):
        raise PoolError(f"a sample of {len(prompt_ids)} prompts arrived with {len(available)} numbers of trajectories")
    return columns(prompt_ids, given, parts, (available, first.minimum)).checked(first.vocabulary or None)


def _part(frame: pb.SampleFrame) -> Part:
    """A frame's trajectories. Raises ``PoolError`` where its columns are not of one length."""
    ids = _divided(frame.ids, [_ID_BYTES] * (len(frame.ids) // _ID_BYTES))
    blobs = _divided(frame.records, _numbers(frame.record_lengths))
    if len(blobs) != len(ids):
        raise PoolError(f"a sample's frame arrived with {len(ids)} ids, {len(blobs)} records")
    return Stored(ids, blobs).part()


def _divided(column: bytes, lengths: list[int]) -> list[bytes]:
    """A column cut into pieces of these lengths. Raises ``PoolError`` where they are not those of all of it."""
    if min(lengths, default=0) < 0 or sum(lengths) != len(column):
        raise PoolError(
            f"a sample's frame arrived with {len(column)} bytes for {len(lengths)} pieces of {sum(lengths)}"
        )
    bounds = [0, *itertools.accumulate(lengths)]
    return [column[start:end] for start, end in itertools.pairwise(bounds)]


def _numbers(column: bytes) -> list[int]:
    if len(column) % 4:
        raise PoolError(f"a sample's frame arrived with {len(column)} bytes of int32")
    numbers: list[int] = np.frombuffer(column, "<i4").tolist()
    return numbers


def first_frame(drawn: Drawn, vocabulary: int | None) -> pb.SampleFrame:
    """Return what a sample's first frame says of all its prompts."""
    counts, available = (column.astype("<i4").tobytes() for column in (drawn.counts, drawn.available))
    return pb.SampleFrame(counts=counts, available=available, minimum=drawn.minimum, vocabulary=vocabulary or 0)


def named_ids(prompt_ids: Sequence[str], counts: bytes, ids: bytes) -> list[tuple[str, list[bytes]]]:
    """Prompts with content ids, out of their columns. Raises ``PoolError`` where these do not fit together."""
    lengths = _numbers(counts)
    if len(lengths) != len(prompt_ids):
        raise PoolError(f"{len(prompt_ids)} prompts arrived with {len(lengths)} counts")
    columns_of_prompts = _divided(ids, [_ID_BYTES * length for length in lengths])
    return [
        (prompt_id, _divided(column, [_ID_BYTES] * (len(column) // _ID_BYTES)))
        for prompt_id, column in zip(prompt_ids, columns_of_prompts, strict=True)
    ]
