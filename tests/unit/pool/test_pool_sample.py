"""Many records at once give the same columns as one by one, and a damaged one among them is named."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from rlep.core.errors import PoolError, RecordRefused
from rlep.core.types import Float32Array, Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.wire import FRAME_BYTES, insert_calls, sample_frames, sample_of
from rlep.services.pool.storage.codec import encode, parse, split_all
from rlep.services.pool.storage.draw import Drawn
from rlep.services.pool.storage.sample import Stored, columns, part_of

HEADER = 24
IDS = [bytes([n]) * 16 for n in range(4)]


def record(tokens: list[int], logprobs: Float32Array | None, *, single: bool = False) -> bytes:
    trajectory = Trajectory(
        "q", np.array(tokens, np.int32), logprobs, "stop", Verdict("correct", "1", "math", "1"),
        Provenance("policy", 1, "tokenizer", Sampling()), 0.0,
    )  # fmt: skip
    return encode(trajectory, precision="float32" if single else "float16")


def of(*values: float) -> Float32Array:
    return np.array(values, np.float32)


BLOBS = [
    record([5, 6, 7], of(-0.5, -1.0, -2.0)),
    record([8], None),
    record([9, 10], of(-0.1, -0.2), single=True),
    record([11], of(-4.0)),
]


@pytest.mark.parametrize("chosen", [[0, 3], [2], [1], [0, 1, 2, 3], []])
def test_columns_hold_the_values_of_the_single_records(chosen: list[int]) -> None:
    blobs, ids = [BLOBS[n] for n in chosen], [IDS[n] for n in chosen]
    stored = Stored(ids, blobs)
    part = stored.part()
    held = np.array([4], np.int32)
    sample = columns(["q"], np.array([len(chosen)], np.int32), [part], (held, 1))
    singles = [parse(blob) for blob in blobs]
    assert sample.tokens.tolist() == [token for single in singles for token in single.tokens.tolist()]
    wanted = [np.full(len(s.tokens), np.nan) if s.logprobs is None else s.logprobs for s in singles]
    np.testing.assert_array_equal(sample.logprobs, np.concatenate([of(), *wanted]))
    assert np.diff(sample.offsets).tolist() == [len(single.tokens) for single in singles]
    # Over the wire the same.
    frames = list(sample_frames(stored)) or [pb.SampleFrame()]
    frames[0].counts, frames[0].available = struct.pack("<i", len(chosen)), struct.pack("<i", 4)
    received = sample_of(["q"], frames)
    assert (received.ids, received.details) == (sample.ids, sample.details)
    for name in ("counts", "offsets", "tokens", "logprobs", "finished"):
        sent, got = getattr(sample, name), getattr(received, name)
        assert (got.dtype, got.tobytes()) == (sent.dtype, sent.tobytes()), name


@pytest.mark.parametrize(
    ("at", "damage", "reason"),
    [
        (HEADER + 8, b"\xff\xff\xff\xff", "record's token frame is damaged"),
        (4, b"\x09", "record version 9 is unknown"),
        (-1, b"", "bytes long; its header says"),
    ],
)
def test_a_damaged_record_among_others_is_named(at: int, damage: bytes, reason: str) -> None:
    bad = BLOBS[2][:at] + damage + (BLOBS[2][at + len(damage) :] if damage else b"")
    with pytest.raises(RecordRefused, match=f"trajectory {IDS[2].hex()}: .*{reason}"):
        Stored(IDS, [*BLOBS[:2], bad, BLOBS[3]]).part()


@pytest.mark.parametrize("value", [0x7C00, 0xFC00, 0x7E00])  # inf, -inf, NaN in float16
def test_a_log_prob_that_is_not_finite_is_found_and_its_record_named(value: int) -> None:
    sections = split_all(BLOBS)
    sections[3] = sections[3]._replace(logprobs=struct.pack("<H", value))
    for chosen in ([0, 3], [0, 1, 2, 3]):  # all float16, and mixed
        with pytest.raises(RecordRefused, match=f"trajectory {IDS[3].hex()}: .*not finite"):
            part_of([IDS[n] for n in chosen], [sections[n] for n in chosen])


def test_stored_records_that_do_not_fit_their_frame_are_refused() -> None:
    (good,) = sample_frames(Stored(IDS, BLOBS))
    good.counts = good.available = struct.pack("<i", 4)
    assert sample_of(["q"], [good]).counts.tolist() == [4]
    lengths = list(map(len, BLOBS))
    changes = {
        "counts": struct.pack("<i", 3),
        "available": struct.pack("<2i", 4, 4),
        "ids": good.ids[:-1],
        "records": good.records[:-1],
        "record_lengths": struct.pack("<4i", -1, lengths[0] + lengths[1] + 1, *lengths[2:]),
    }
    for field, value in changes.items():
        bad = pb.SampleFrame.FromString(good.SerializeToString())
        setattr(bad, field, value)
        with pytest.raises(PoolError, match="arrived with"):
            sample_of(["q"], [bad])
    good.records = good.records[:-1] + b"!"  # the last byte of a text
    good.record_lengths = struct.pack("<4i", lengths[0] - 1, lengths[1] + 1, *lengths[2:])
    with pytest.raises(RecordRefused, match=f"trajectory {IDS[0].hex()}"):
        sample_of(["q"], [good])


def test_a_part_larger_than_a_frame_is_divided_between_records() -> None:
    # Log-probs take 4 bytes a token: 1.2, 2.0, 0.0 and 0.8 MB; with the compressed tokens each frame holds one or more.
    lengths = [300_000, 500_000, 1, 200_000]
    draw = np.random.default_rng(0)
    blobs = [record(list(range(n)), -draw.random(n, np.float32), single=True) for n in lengths]
    frames = list(sample_frames(Stored(IDS, blobs)))
    sizes = [np.frombuffer(frame.record_lengths, "<i4").tolist() for frame in frames]
    assert [size for frame in sizes for size in frame] == list(map(len, blobs))
    assert len(frames) > 1
    assert all(sum(frame) <= FRAME_BYTES < sum(frame) + later[0] for frame, later in itertools.pairwise(sizes))
    frames[0].counts = frames[0].available = struct.pack("<i", 4)
    received = sample_of(["q"], frames)
    assert np.diff(received.offsets).tolist() == lengths
    assert received.ids == tuple(one.hex() for one in IDS)


def test_inserts_are_divided_into_calls_and_frames() -> None:
    small = [pb.Record(prompt_id="q", record=b"x") for _ in range(1100)]
    calls = [[len(frame.records) for frame in frames] for frames in insert_calls(small)]
    assert calls == [[64] * 8, [64] * 8, [64, 12]]
    large = [pb.Record(prompt_id="q", record=bytes(FRAME_BYTES // 2)) for _ in range(34)]
    # With 256 bytes for what is around it, one record of half a frame fits a frame and 31 fit the 64 MiB of a call.
    assert [[len(frame.records) for frame in frames] for frames in insert_calls(large)] == [[1] * 31, [1] * 3]
    assert list(insert_calls([])) == []


def test_a_draw_is_divided_by_prompts_and_by_records() -> None:
    counts = [2, 0, 3, 1, 0, 9, 1]
    held = [b"".join(bytes([p, k]) * 8 for k in range(10)) for p in range(7)]  # ten records each, the last ones picked
    picks = np.array([9 - k for count in counts for k in range(count)])
    drawn = Drawn([f"q{p}" for p in range(7)], np.array(counts, np.int32), picks, held)

    def divided(prompts: int, records: int) -> list[str]:
        parts = list(drawn.parts(prompts=prompts, records=records))
        assert [ids for part in parts for ids in part.ids()] == [
            [bytes([p, 9 - k]) * 8 for k in range(count)] for p, count in enumerate(counts)
        ]
        assert [n for part in parts for n in part.counts.tolist()] == counts
        return [" ".join(part.prompt_ids) for part in parts]

    assert divided(3, 100) == ["q0 q1 q2", "q3 q4 q5", "q6"]
    assert divided(100, 5) == ["q0 q1 q2", "q3 q4", "q5", "q6"]  # the 9 records of q5 stay together
    assert divided(7, 16) == ["q0 q1 q2 q3 q4 q5 q6"]
    nothing = Drawn([], np.zeros(0, np.int32), np.zeros(0, np.int64), [])
    assert list(nothing.parts(prompts=3, records=3)) == []
