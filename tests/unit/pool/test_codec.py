"""A record gives back what went in, and is refused with its reason whenever it is not exactly a record."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rlep.core.errors import RecordRefused
from rlep.core.types import Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.storage.codec import MAX_TOKENS, decode, encode, parse

PROMPT = "0123456789abcdef0123456789abcdef"
HEADER = 24
EXAMPLE = Trajectory(
    prompt_id=PROMPT,
    tokens=np.array([151643, 0, 5, 5, 2], np.int32),
    logprobs=np.array([-0.5, -0.25, 0.0, -1.5, -8.0], np.float32),  # all exact in float16
    finish_reason="stop",
    verdict=Verdict("correct", "3/4", "math", "2.1", "fast", 0.003),
    provenance=Provenance("run@hash", 41, "tok", Sampling(0.7, 0.95, 20, 3072), "raw", "bfloat16"),
    created_at=1753000000.25,
    sample_id="train/41/q/7",
    metadata={"b": "zwei", "a": "eins é"},
)


def check_equal(found: Trajectory, wanted: Trajectory) -> None:
    """Every field, arrays bit by bit."""
    assert found.tokens.dtype == np.int32
    assert found.tokens.tolist() == wanted.tokens.tolist()
    if wanted.logprobs is None:
        assert found.logprobs is None
    else:
        assert found.logprobs is not None
        assert found.logprobs.dtype == np.float32
        assert found.logprobs.tobytes() == wanted.logprobs.tobytes()
    empty = np.zeros(0, np.int32)
    rest = [replace(t, tokens=empty, logprobs=None) for t in (found, wanted)]
    fields = ("prompt_id", "finish_reason", "verdict", "provenance", "created_at", "sample_id", "metadata")
    assert [getattr(rest[0], name) for name in fields] == [getattr(rest[1], name) for name in fields]


def resealed(blob: bytes) -> bytes:
    """The record with its checksum made to match again, as a careful forger would."""
    return blob[:20] + struct.pack("<I", zlib.crc32(blob[:20] + blob[HEADER:])) + blob[HEADER:]


def test_every_field_comes_back() -> None:
    check_equal(decode(encode(EXAMPLE), PROMPT), EXAMPLE)


def test_unknown_log_probs_a_missing_answer_and_a_truncated_response_come_back() -> None:
    example = replace(
        EXAMPLE, logprobs=None, finish_reason="length", verdict=replace(EXAMPLE.verdict, extracted=None), metadata={}
    )
    check_equal(decode(encode(example), PROMPT), example)
    empty_answer = replace(EXAMPLE, verdict=replace(EXAMPLE.verdict, extracted=""))
    assert decode(encode(empty_answer), PROMPT).verdict.extracted == ""


SCORED = replace(EXAMPLE, verdict=replace(EXAMPLE.verdict, score=0.8, parts={"format": 1.0, "steps": -7.25}))


def test_a_score_and_its_parts_come_back() -> None:
    check_equal(decode(encode(SCORED), PROMPT), SCORED)


def test_a_record_with_a_score_is_one_whose_metadata_has_it_and_one_without_is_as_ever() -> None:
    details = parse(encode(SCORED)).details
    for text in (b"\x0d\x00verdict.score\x03\x000.8", b"\x13\x00verdict.part.format\x03\x001.0"):
        assert details.count(text) == 1
    assert b"verdict." not in encode(EXAMPLE)
    # Metadata pairs, little endian, at byte 2 of the details: 2 of its own, then 3 of the score.
    assert (parse(encode(EXAMPLE)).details[2:4], details[2:4]) == (b"\x02\x00", b"\x05\x00")


def test_a_template_digest_comes_back_and_a_record_without_one_is_as_ever() -> None:
    templated = replace(EXAMPLE, provenance=replace(EXAMPLE.provenance, template_digest="5eed"))
    check_equal(decode(encode(templated), PROMPT), templated)
    details, plain = (parse(encode(one)).details for one in (templated, EXAMPLE))
    stored = b"\x0f\x00prompt.template\x04\x005eed"  # last of three metadata pairs, in the order of their keys
    assert (details[2:4], details.replace(stored, b"")[4:]) == (b"\x03\x00", plain[4:])
    assert decode(encode(EXAMPLE), PROMPT).provenance.template_digest == ""


def episode(text: str) -> Trajectory:
    """An episode of the environment ``e1``: P is a token of the policy, e one of the environment."""
    count = len(text)
    return replace(
        EXAMPLE,
        tokens=np.arange(count, dtype=np.int32),
        logprobs=np.array([-0.5 if one == "P" else 0.0 for one in text], dtype=np.float32),
        sampled=np.array([one == "P" for one in text]),
        provenance=replace(EXAMPLE.provenance, environment_digest="e1"),
    )


@pytest.mark.parametrize(
    ("text", "stored"),
    [("PPePeeeP", b"\x0f\x00episode.sampled\x09\x002,1,1,3,1"), ("eP", b"\x0f\x00episode.sampled\x05\x000,1,1")],
)
def test_an_episode_comes_back_with_its_mask_and_an_older_reader_refuses_it(text: str, stored: bytes) -> None:
    blob = encode(episode(text))
    found = decode(blob, PROMPT)
    check_equal(found, episode(text))
    assert found.sampled is not None
    assert found.sampled.tolist() == [one == "P" for one in text]
    assert parse(blob).details.count(stored) == 1
    assert (blob[5] & 8, encode(EXAMPLE)[5] & 8) == (8, 0)  # a reader of before knows flags up to 7


def test_a_mask_of_the_policys_tokens_alone_is_none() -> None:
    whole = episode("PPP")
    assert encode(whole) == encode(replace(whole, sampled=None))
    assert decode(encode(whole), PROMPT).provenance.environment_digest == "e1"


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([True, False], "has 3 tokens and says of 2"),
        ([True, True, False], "ends with a token that its environment wrote"),
        ([1, 0, 1], "not a one-dimensional array of bool"),
        ([True, True], "has 3 tokens and says of 2"),  # all of them the policy's, as where there is no mask
        ([[True, True, True]], "not a one-dimensional array of bool"),
        ([1, 1, 1], "not a one-dimensional array of bool"),
    ],
)
def test_a_mask_that_does_not_fit_is_not_stored(mask: list[Any], reason: str) -> None:
    with pytest.raises(RecordRefused, match=reason):
        encode(replace(episode("PeP"), sampled=np.array(mask)))


def test_an_empty_mask_or_one_that_is_no_array_is_not_stored() -> None:
    with pytest.raises(RecordRefused, match="has 3 tokens and says of 0"):
        encode(replace(episode("PeP"), sampled=np.array([], np.bool_)))
    with pytest.raises(RecordRefused, match="not a one-dimensional array of bool"):
        encode(replace(episode("PeP"), sampled=[True, False, True]))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1,1,2", "1,0,2", "01,1", "1,2,-", "1,1,1,", "3,,0,"])
def test_a_stored_mask_that_does_not_fit_is_refused(text: str) -> None:
    blob = encode(episode("PeP")).replace(b"\x05\x001,1,1", struct.pack("<H", len(text)) + text.encode())
    if len(text) != 5:  # as long as before
        blob = blob[:16] + struct.pack("<I", struct.unpack("<I", blob[16:20])[0] + len(text) - 5) + blob[20:]
    with pytest.raises(RecordRefused, match="mask"):
        decode(resealed(blob), PROMPT)


def test_an_empty_template_digest_is_refused() -> None:
    key = b"\x0f\x00prompt.template"
    blob = encode(replace(EXAMPLE, metadata={"prompt-template": ""}))
    with pytest.raises(RecordRefused, match="a digest or an episode's mask is empty"):
        decode(resealed(blob.replace(b"prompt-template", key[2:])), PROMPT)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"0.8", b"1.8", r"score 1.8 does not lie in \[0, 1\]"),
        (b"0.8", b"nan", "score nan does not lie"),
        (b"0.8", b"00.", "not written as this rlep writes it"),
        (b"0.8", b"one", "no number"),
        (b"-7.25", b"-1e99", "not written"),
        (b"part.format", b"part./ormat", "part name '/ormat'"),
        (b"verdict.score", b"Verdict.score", "score is missing"),
    ],
)
def test_a_record_whose_score_is_none_is_refused(before: bytes, after: bytes, reason: str) -> None:
    blob = encode(SCORED)
    assert blob.count(before) == 1
    with pytest.raises(RecordRefused, match=reason):
        decode(resealed(blob.replace(before, after)), PROMPT)


SHAPED = replace(
    EXAMPLE,
    provenance=replace(
        EXAMPLE.provenance,
        sampling=Sampling(0.7, 0.95, 20, 3072, 0.05, 1.1, stop=("</answer>", "\n\n\u00e9"), stop_tokens=(7, 151643)),
    ),
)


def test_the_whole_sampling_comes_back() -> None:
    check_equal(decode(encode(SHAPED), PROMPT), SHAPED)
    stopped = replace(EXAMPLE, provenance=replace(EXAMPLE.provenance, sampling=Sampling(stop_tokens=(3,))))
    check_equal(decode(encode(stopped), PROMPT), stopped)


def test_score_sampling_and_template_lie_beside_each_other() -> None:
    whole = replace(
        SHAPED,
        verdict=replace(EXAMPLE.verdict, score=0.5, parts={"right": 1.0}),
        provenance=replace(SHAPED.provenance, template_digest="t"),
    )
    check_equal(decode(encode(whole), PROMPT), whole)
    assert parse(encode(whole)).details[2:4] == b"\x06\x00"  # two pairs of its own, score, part, sampling, template


def test_more_of_a_sampling_is_one_pair_of_the_metadata_and_a_record_without_is_as_ever() -> None:
    written = b'{"min_p": 0.05, "repetition_penalty": 1.1, "stop": ["</answer>", "\\n\\n\\u00e9"], "stop_tokens": [7, 151643]}'
    details = parse(encode(SHAPED)).details
    assert details.count(b"\x13\x00provenance.sampling" + bytes([len(written), 0]) + written) == 1
    assert details[2:4] == b"\x03\x00"  # two pairs of its own
    assert b"provenance." not in encode(EXAMPLE)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"0.05,", b"-.05,", "cannot be read"),
        (b"0.05,", b"-1.5,", "min_p or repetition_penalty .* no finite number from 0"),
        (b"0.05,", b" NaN,", "no finite number from 0"),
        (b"0.05,", b"true,", "no finite number from 0"),
        (b"0.05,", b" 0.5,", "not written as this rlep writes it"),
        (b"[7, 151643]", b"[7, 15164.]", "cannot be read"),
        (b"[7, 151643]", b'["7","1516"]'[:11], "cannot be read"),
        (b"[7, 151643]", b"[7, 1516.5]", "stop_tokens .* something else than token ids"),
        (b"[7, 151643]", b"          7", "stop_tokens 7 holds something else"),
        (b'"</answer>"', b"12345678901", "stop .* something else than texts"),
        (b'"min_p"', b'"top_p"', "not written as this rlep writes it"),
        (b'"min_p"', b'"Min_p"', "cannot be read"),
    ],
)
def test_a_record_whose_sampling_is_none_is_refused(before: bytes, after: bytes, reason: str) -> None:
    blob = encode(SHAPED)
    assert blob.count(before) == 1
    assert len(before) == len(after)
    with pytest.raises(RecordRefused, match=reason):
        decode(resealed(blob.replace(before, after)), PROMPT)


def test_a_key_of_the_sampling_in_the_metadata_is_refused() -> None:
    with pytest.raises(RecordRefused, match=r"'provenance\.sampling' is kept for .* the sampling,"):
        encode(replace(EXAMPLE, metadata={"provenance.sampling": "{}"}))


def test_float16_rounds_to_11_bits_and_float32_keeps_every_bit() -> None:
    # Between 0.5 and 1 float16 steps by 2^-11: 0.7 lies between 1433/2048 and 1434/2048, nearer to 1434.
    example = replace(EXAMPLE, tokens=np.array([1], np.int32), logprobs=np.array([-0.7], np.float32))
    half = decode(encode(example, precision="float16"), PROMPT).logprobs
    single = decode(encode(example, precision="float32"), PROMPT).logprobs
    assert half is not None
    assert single is not None
    assert half[0] == -1434 / 2048
    assert single[0] == np.float32(-0.7)
    assert len(encode(example, precision="float32")) - len(encode(example, precision="float16")) == 2


def test_a_log_prob_beyond_float16_is_kept_as_float32() -> None:
    far = replace(EXAMPLE, tokens=np.array([1], np.int32), logprobs=np.array([-1e6], np.float32))
    found = decode(encode(far), PROMPT).logprobs
    assert found is not None
    assert found[0] == -1e6


@settings(max_examples=60)
@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300),
    metadata=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_trajectory_comes_back_in_float32(tokens: list[int], metadata: dict[str, str], seed: int) -> None:
    try:
        str(metadata).encode()
    except UnicodeEncodeError:
        return
    logprobs = -np.random.default_rng(seed).exponential(3, len(tokens)).astype(np.float32)
    example = replace(EXAMPLE, tokens=np.array(tokens, np.int32), logprobs=logprobs, metadata=metadata)
    check_equal(decode(encode(example, precision="float32"), PROMPT), example)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": np.array([], np.int32), "logprobs": None}, "0 tokens"),
        ({"tokens": np.array([3, -1], np.int32), "logprobs": None}, "from -1 to 3"),
        ({"tokens": np.array([2**31], np.int64), "logprobs": None}, "2147483648"),
        ({"tokens": np.array([1.5]), "logprobs": None}, "integer array"),
        ({"tokens": np.zeros(MAX_TOKENS + 1, np.int32), "logprobs": None}, "1048577 tokens"),
        ({"logprobs": np.zeros(4, np.float32)}, "5 tokens"),
        ({"logprobs": np.array([0, 0, np.nan, 0, -np.inf], np.float32)}, "2 of 5 log-probs"),
        ({"logprobs": np.zeros(5, np.int64)}, "float array"),
        ({"finish_reason": "abort"}, "'abort'"),
        ({"created_at": float("nan")}, "not finite"),
        ({"created_at": -1.0}, "negative"),
        ({"metadata": {"a": "x" * 70000}}, "70000 bytes"),
        ({"metadata": {"a": "x" * 40000, "b": "y" * 40000}}, "at most 65536"),
        ({"metadata": {"a": 3}}, "int, not str"),
        ({"metadata": {"a": "\ud800"}}, "surrogate"),
        ({"metadata": {"a": "1", 2: "x"}}, "not a mapping whose keys are texts"),
        ({"metadata": None}, "not a mapping whose keys are texts"),
        ({"created_at": None}, "wrong type: must be real number, not NoneType"),
        ({"verdict": None}, "wrong type: 'NoneType' object has no attribute"),
        ({"verdict": replace(EXAMPLE.verdict, score="1")}, "wrong type"),  # type: ignore[arg-type]
        ({"prompt_id": "a}b"}, "a}b"),
        ({"metadata": {"verdict.score": "1.0"}}, "'verdict.score' is kept for a verdict's score"),
        ({"metadata": {"prompt.template": "x"}}, "'prompt.template' is kept for .* a digest"),
        ({"verdict": replace(EXAMPLE.verdict, score=1.25)}, "score 1.25 does not lie"),
        ({"verdict": replace(EXAMPLE.verdict, score=1.0, parts={"a b": 1.0})}, "part name 'a b'"),
        ({"verdict": replace(EXAMPLE.verdict, parts={"format": 1.0})}, "named parts but no score"),
        ({"prompt_id": ""}, "''"),
        (
            {"verdict": Verdict("great", None, "math", "1")},  # type: ignore[arg-type]
            "'great'",
        ),
        ({"provenance": replace(EXAMPLE.provenance, policy_version=2**63)}, "does not fit"),
    ],
)
def test_what_could_not_be_given_back_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(RecordRefused, match=reason):
        encode(replace(EXAMPLE, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"RLEQ", "wrong first bytes"),
        (4, b"\x02", "record version 2 is unknown; this rlep reads version 1"),
        (5, b"\x15", "flags"),
        (5, b"\x03", "flags"),
        (6, b"\x01\x00", "flags"),
        (8, struct.pack("<I", 0), "0 tokens"),
        (8, struct.pack("<I", MAX_TOKENS + 1), "too many"),
        (8, struct.pack("<I", 4), "its header says"),
        (12, struct.pack("<I", 2**32 - 1), "its header says"),
        (16, struct.pack("<I", 2**32 - 1), "too many"),
    ],
)
def test_a_damaged_header_is_refused(at: int, value: bytes, reason: str) -> None:
    blob = encode(EXAMPLE)
    with pytest.raises(RecordRefused, match=reason):
        decode(blob[:at] + value + blob[at + len(value) :], PROMPT)


def test_every_truncation_and_every_extra_byte_is_refused() -> None:
    blob = encode(EXAMPLE)
    for length in range(len(blob)):
        with pytest.raises(RecordRefused):
            decode(blob[:length], PROMPT)
    with pytest.raises(RecordRefused, match="its header says"):
        decode(blob + b"\0", PROMPT)


def test_every_flipped_bit_is_refused() -> None:
    blob = encode(EXAMPLE)
    for bit in range(8 * len(blob)):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordRefused):
            decode(bytes(flipped), PROMPT)


def forged(tokens: bytes, *, count: int) -> bytes:
    """A record whose token frame holds other bytes than it should, everything else in order."""
    frame = zstandard.ZstdCompressor().compress(tokens)
    flags = 4
    return resealed(struct.pack("<4sBBHIIII", b"RLEP", 1, flags, 0, count, len(frame), 0, 0) + frame)


def test_a_frame_that_would_unpack_to_more_than_it_should_is_refused_unopened() -> None:
    with pytest.raises(RecordRefused, match="does not hold 2 token ids"):
        parse(forged(bytes(1 << 28), count=2))  # 256 MiB of zeros in a few kB


def test_negative_ids_and_log_probs_that_are_not_finite_are_refused_when_read() -> None:
    with pytest.raises(RecordRefused, match="negative token ids"):
        parse(forged(struct.pack("<ii", 1, -1), count=2))
    blob = bytearray(encode(EXAMPLE))
    frame = struct.unpack_from("<I", blob, 12)[0]
    blob[HEADER + frame : HEADER + frame + 2] = np.array([np.inf], "<f2").tobytes()
    with pytest.raises(RecordRefused, match="not finite"):
        parse(bytes(blob))


def test_details_that_do_not_add_up_are_refused() -> None:
    blob = encode(EXAMPLE)
    details = parse(blob).details
    start = len(blob) - len(details)
    for change in (details[:0] + b"\x09" + details[1:], details[:2] + b"\xff\xff" + details[4:]):
        with pytest.raises(RecordRefused, match=r"unknown verdict status|details end before"):
            decode(resealed(blob[:start] + change), PROMPT)


def test_a_record_of_the_first_version_still_reads() -> None:
    # Written by hand from the layout: 2 tokens, no log-probs, 9 empty text fields, status correct.
    frame = zstandard.ZstdCompressor(level=1).compress(struct.pack("<ii", 10, 11))
    numbers = struct.pack("<BBHqiidddd", 0, 0, 0, 5, 0, 16, 1.0, 1.0, 99.0, 0.0)
    body = frame + numbers + 9 * b"\0\0"
    header = struct.pack("<4sBBHIII", b"RLEP", 1, 4, 0, 2, len(frame), len(numbers) + 18)
    found = decode(header + struct.pack("<I", zlib.crc32(header + body)) + body, PROMPT)
    assert found.tokens.tolist() == [10, 11]
    assert found.finish_reason == "stop"
    assert found.provenance.policy_version == 5
    assert found.created_at == 99.0
