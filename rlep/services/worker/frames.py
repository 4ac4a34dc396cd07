"""Frames between the parent and a worker: a magic byte, a 4-byte length, and JSON in ASCII.

JSON escapes carry NUL and lone surrogates unchanged, and nothing that is read is ever executed (unlike pickle).
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct(">cI")
_MAGIC = b"V"
HEADER_BYTES = _HEADER.size
MAX_FRAME = 256 << 20


class FrameError(ValueError):
    """Bytes that are not a frame: the two ends no longer agree."""


def encode(message: Any) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _HEADER.pack(_MAGIC, len(body)) + body


def length_of(header: bytes) -> int:
    """The body length a header announces. Raises FrameError for anything else."""
    magic, length = _HEADER.unpack(header)
    if magic != _MAGIC or length > MAX_FRAME:
        raise FrameError(f"not a frame header: {header!r}")
    return int(length)


def decode(body: bytes) -> Any:
    """The message in a frame's body. Raises FrameError where it is none."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise FrameError(f"a frame of {len(body)} bytes is not JSON: {error}") from error


def take(buffer: bytearray) -> tuple[Any, int]:
    """``(message, bytes used)`` of the first frame in a buffer; ``(None, 0)`` while it is incomplete."""
    if len(buffer) < HEADER_BYTES:
        return None, 0
    end = HEADER_BYTES + length_of(bytes(buffer[:HEADER_BYTES]))
    return (decode(bytes(buffer[HEADER_BYTES:end])), end) if len(buffer) >= end else (None, 0)


def read_blocking(descriptor: int) -> Any | None:
    """The next message of a blocking pipe; None at its end."""
    header = _read_exactly(descriptor, HEADER_BYTES)
    if not header:
        return None
    return decode(_read_exactly(descriptor, length_of(header)))


def _read_exactly(descriptor: int, count: int) -> bytes:
    """``count`` bytes, or none at a clean end. Raises FrameError at an end in the middle."""
    chunks = bytearray()
    while len(chunks) < count:
        chunk = os.read(descriptor, min(count - len(chunks), 1 << 20))
        if not chunk:
            if chunks:
                raise FrameError("the pipe ended inside a frame")
            return b""
        chunks += chunk
    return bytes(chunks)
