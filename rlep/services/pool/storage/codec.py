"""The record of a trajectory in the pool: one versioned binary record, refused with a reason wherever it is not exactly that.

Layout, little endian (24-byte header, then three sections, then nothing)::

    "RLEP" | version u8 | flags u8 | 0 u16 | T u32 | token bytes u32 | detail bytes u32 | crc32 u32 of all the rest
    token ids   one zstd-1 frame of T int32, with its own checksum
    log-probs   T float16 or float32, or nothing (flags bits 0-1: 0 none, 1 float16, 2 float32)
    details     numbers and strings of the verdict, the provenance and the metadata (``details.py``)

Flags bit 2: the response ended with its EOS; bit 3: an episode, whose mask is among the details. The prompt id is not in the
record: it is the key the record lies under.
"""

from __future__ import annotations

import re
import struct
import threading
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import zstandard

from rlep.core.errors import RecordRefused
from rlep.core.types import Float32Array, Int32Array, Trajectory, content_id_of
from rlep.services.pool.storage.details import is_masked, pack_details, unpack_details

VERSION = 1
MAX_TOKENS = 1 << 20
"""Longest response a record may hold, in tokens."""
MAX_DETAILS = 1 << 16
"""Most bytes of verdict, provenance and metadata in a record."""

Precision = Literal["float16", "float32"]
"""How log-probs are stored. bfloat16 is no choice: its 8 bits put a ratio of probabilities off by 13 %."""

_MAGIC = b"RLEP"
_HEADER = struct.Struct("<4sBBHIIII")
_HEADERS = np.dtype(
    [("magic", "S4"), ("version", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("count", "<u4"), ("frame", "<u4"),
     ("details", "<u4"), ("crc", "<u4")]
)  # fmt: skip
_CRC = struct.Struct("<I")
_CRC_AT = _HEADER.size - _CRC.size
_FLAGS_AT = 5
_STOP, _MASKED = 4, 8
_LOGPROB_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f2"), 2: np.dtype("<f4")}
_LOGPROB_BYTES = np.array([0, 2, 4, 0])
POOL_NAME, PROMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_FLOAT16_MAX = 65504.0


class Record(NamedTuple):
    """The sections of one record; ``details`` is not decoded until a ``Trajectory`` is wanted."""

    tokens: Int32Array
    """``[T]``"""
    logprobs: Float32Array | None
    """``[T]``"""
    finished: bool
    """The response ended with its EOS."""
    details: bytes


class Sections(NamedTuple):
    """The bytes of a record's sections: their lengths are right, their values are not looked at yet."""

    length: int
    """T, in tokens."""
    tokens: bytes
    """T little-endian int32."""
    dtype: np.dtype[Any] | None
    """Of the log-probs, None where they were never known."""
    logprobs: bytes
    finished: bool
    details: bytes


class _Zstd(threading.local):
    """One compressor and decompressor per thread: they may not be used by two threads at once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def check_prompt_id(prompt_id: str) -> None:
    """Refuse a prompt id that is not 1 to 128 letters, digits or ``_.:-`` (``prompt_id_of`` gives 32 hex digits)."""
    if not isinstance(prompt_id, str) or not PROMPT_ID.fullmatch(prompt_id):
        raise RecordRefused(f"prompt id {prompt_id!r:.60} is not 1 to 128 letters, digits or _.:-")


def encode(trajectory: Trajectory, *, precision: Precision = "float16") -> bytes:
    """The record of one trajectory.

    Log-probs beyond float16's range are kept as float32 whatever ``precision`` says. Raises ``RecordRefused`` with
    the reason where the trajectory is not one the pool can give back.
    """
    check_prompt_id(trajectory.prompt_id)
    tokens = _checked_tokens(trajectory.tokens)
    frame = _zstd.compressor.compress(tokens.tobytes())
    kind, logprobs = _packed_logprobs(trajectory.logprobs, len(tokens), precision)
    try:
        details = pack_details(trajectory)
    except RecordRefused:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordRefused(
            f"a field of the verdict, the provenance or the metadata has a wrong type: {error}"
        ) from None
    if len(details) > MAX_DETAILS:
        raise RecordRefused(f"verdict, provenance and metadata take {len(details)} bytes; at most {MAX_DETAILS}")
    body = frame + logprobs + details
    flags = kind | (_STOP if trajectory.finish_reason == "stop" else 0) | (_MASKED if is_masked(trajectory) else 0)
    header = _HEADER.pack(_MAGIC, VERSION, flags, 0, len(tokens), len(frame), len(details), 0)
    return header[:_CRC_AT] + _CRC.pack(_checksum(header + body)) + body


def name_of(trajectory: Trajectory) -> str:
    """The content id of a trajectory, or nothing where its arrays are not what they should be."""
    try:
        return content_id_of(trajectory.prompt_id, trajectory.tokens)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return ""


def raw_id(content_id: str) -> bytes:
    """The 16 bytes of a content id."""
    try:
        raw = bytes.fromhex(content_id)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise RecordRefused(f"content id {content_id!r:.60} is not 32 hex digits")
    return raw


def decode(blob: bytes, prompt_id: str) -> Trajectory:
    """The trajectory in a record, its checksum verified. Raises ``RecordRefused`` with the reason."""
    check_prompt_id(prompt_id)
    # A draw goes without this: it checks lengths, zstd's own checksum of the tokens, and that log-probs are finite.
    record = parse(blob)
    if (_checksum(blob),) != _CRC.unpack_from(blob, _CRC_AT):
        raise RecordRefused("record's checksum does not match its bytes")
    return rebuild(record, prompt_id)


def precision_of(blob: bytes) -> Precision | None:
    """The form in which a decoded record holds its log-probs; None where it has none."""
    dtype = _LOGPROB_DTYPES.get(blob[_FLAGS_AT] & 3)
    return None if dtype is None else "float16" if dtype.itemsize == 2 else "float32"


def rebuild(record: Record, prompt_id: str) -> Trajectory:
    """The trajectory of a parsed record."""
    return unpack_details(
        record.details,
        prompt_id=prompt_id,
        tokens=record.tokens,
        logprobs=record.logprobs,
        finish_reason="stop" if record.finished else "length",
    )


def parse(blob: bytes) -> Record:
    """The sections of a record, checked; the details' text is left for later. Raises ``RecordRefused``."""
    return check(split(blob))


def check(sections: Sections) -> Record:
    """The values in a record's sections. Raises ``RecordRefused`` where one cannot be."""
    tokens = np.frombuffer(sections.tokens, "<i4").astype(np.int32, copy=False)  # [T]
    if tokens.min() < 0:
        raise RecordRefused("record holds negative token ids")
    logprobs = None
    if sections.dtype:
        logprobs = np.frombuffer(sections.logprobs, sections.dtype).astype(np.float32)  # [T]
        if not np.isfinite(logprobs).all():
            raise RecordRefused("record holds log-probs that are not finite")
    return Record(tokens, logprobs, sections.finished, sections.details)


def split(blob: bytes) -> Sections:
    """The bytes of each section with every length checked, but no value. Raises ``RecordRefused``."""
    if len(blob) < _HEADER.size:
        raise RecordRefused(f"record of {len(blob)} bytes is shorter than its {_HEADER.size}-byte header")
    magic, version, flags, reserved, count, frame_bytes, detail_bytes, _ = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise RecordRefused("not a pool record: wrong first bytes")
    if version != VERSION:
        raise RecordRefused(f"record version {version} is unknown; this rlep reads version {VERSION}")
    if reserved or flags & ~15 or flags & 3 == 3:
        raise RecordRefused(f"record flags {flags:#x} are unknown")
    if not 0 < count <= MAX_TOKENS or detail_bytes > MAX_DETAILS:
        raise RecordRefused(f"record claims {count} tokens and {detail_bytes} detail bytes; too many or none")
    dtype = _LOGPROB_DTYPES.get(flags & 3)
    end_of_tokens = _HEADER.size + frame_bytes
    end_of_logprobs = end_of_tokens + (count * dtype.itemsize if dtype else 0)
    if end_of_logprobs + detail_bytes != len(blob):
        raise RecordRefused(f"record is {len(blob)} bytes long; its header says {end_of_logprobs + detail_bytes}")
    tokens = _decompressed(blob[_HEADER.size : end_of_tokens], count)
    return Sections(
        count, tokens, dtype, blob[end_of_tokens:end_of_logprobs], bool(flags & _STOP), blob[end_of_logprobs:]
    )


def split_all(blobs: Sequence[bytes]) -> list[Sections]:
    """``split`` of each record, their headers looked at together. Raises ``RecordRefused`` for the first wrong one."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    if sizes.min(initial=_HEADER.size) < _HEADER.size:
        return list(map(split, blobs))
    heads = np.frombuffer(b"".join([blob[: _HEADER.size] for blob in blobs]), _HEADERS)
    counts, details, kinds = heads["count"].astype(np.int64), heads["details"], heads["flags"] & 3
    tokens_end = _HEADER.size + heads["frame"].astype(np.int64)
    logprobs_end = tokens_end + counts * _LOGPROB_BYTES[kinds]
    right = (
        (heads["magic"] == _MAGIC) & (heads["version"] == VERSION) & (heads["reserved"] == 0) & (heads["flags"] < 16)
        & (kinds != 3) & (counts > 0) & (counts <= MAX_TOKENS) & (details <= MAX_DETAILS)
        & (logprobs_end + details == sizes)
    )  # fmt: skip
    # One by one, which raises for the first wrong one with its reason.
    if not right.all():
        return list(map(split, blobs))
    dtypes = [_LOGPROB_DTYPES.get(kind) for kind in kinds.tolist()]
    finished = (heads["flags"] & _STOP).astype(np.bool_).tolist()
    columns = (blobs, counts.tolist(), tokens_end.tolist(), logprobs_end.tolist(), dtypes, finished)
    return [
        Sections(count, _decompressed(blob[_HEADER.size : middle], count), dtype, blob[middle:end], ended, blob[end:])
        for blob, count, middle, end, dtype, ended in zip(*columns, strict=True)
    ]


def _checksum(blob: bytes) -> int:
    """Of everything but the checksum itself."""
    return zlib.crc32(memoryview(blob)[_HEADER.size :], zlib.crc32(blob[:_CRC_AT]))


def _decompressed(frame: bytes, count: int) -> bytes:
    """``count`` little-endian int32."""
    try:
        # Read from the frame itself first: a frame that claims more would otherwise be unpacked in full.
        if zstandard.frame_content_size(frame) != 4 * count:
            raise RecordRefused(f"record's token frame does not hold {count} token ids")
        return _zstd.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RecordRefused(f"record's token frame is damaged: {error}") from None


def _checked_tokens(tokens: Int32Array) -> Int32Array:
    """``[T]`` int32, contiguous, little endian."""
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise RecordRefused("token ids are not a one-dimensional integer array")
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise RecordRefused(f"response has {len(tokens)} tokens; a record holds 1 to {MAX_TOKENS}")
    if tokens.min() < 0 or int(tokens.max()) > np.iinfo(np.int32).max:
        raise RecordRefused(f"token ids run from {tokens.min()} to {tokens.max()}; they must fit 0 to 2^31 - 1")
    return np.ascontiguousarray(tokens, dtype="<i4")


def _packed_logprobs(logprobs: Float32Array | None, count: int, precision: Precision) -> tuple[int, bytes]:
    """The dtype's code and the bytes of the log-probs."""
    if logprobs is None:
        return 0, b""
    if not isinstance(logprobs, np.ndarray) or logprobs.shape != (count,) or logprobs.dtype.kind != "f":
        raise RecordRefused(f"log-probs are not a float array of the response's {count} tokens")
    single = logprobs.astype(np.float32)
    if not np.isfinite(single).all():
        raise RecordRefused(f"{int((~np.isfinite(single)).sum())} of {count} log-probs are NaN or infinite")
    kind = 1 if precision == "float16" and np.abs(single).max() <= _FLOAT16_MAX else 2
    return kind, single.astype(_LOGPROB_DTYPES[kind]).tobytes()
