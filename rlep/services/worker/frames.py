"""Frames between the parent and a worker: a magic byte, a 4-byte length, and JSON in ASCII.

JSON escapes carry NUL and lone surrogates unchanged, and nothing that is read is ever executed (unlike pickle).
The parent believes nothing of a worker's frames, as code of others runs in workers: size and number of values are bounded
before a frame is read, and its shape is checked by whoever takes it.
"""

from __future__ import annotations

import json
import os
import re
import struct
from itertools import islice
from typing import Any

_HEADER = struct.Struct(">cI")
_MAGIC = b"V"
HEADER_BYTES = _HEADER.size
MAX_FRAME = 256 << 20
"""Bytes of a frame to a worker."""
MAX_REPLY = 16 << 20
"""Bytes of a frame from a worker."""
MAX_VALUES = 10_000
"""Texts, lists, mappings and what commas part in a frame from a worker: each takes much more memory than its bytes."""
_MARK = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[,[{]')
"""A text, or the beginning of a value."""


class FrameError(ValueError):
    """Bytes that are not a frame: the two ends no longer agree."""


def encode(message: Any) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _HEADER.pack(_MAGIC, len(body)) + body


def length_of(header: bytes, most: int = MAX_FRAME) -> int:
    """Return the body length that a header announces, at most ``most``. Raises FrameError for anything else."""
    magic, length = _HEADER.unpack(header)
    if magic != _MAGIC or length > most:
        raise FrameError(f"not a frame header: {header!r}")
    return int(length)


def decode(body: bytes) -> Any:
    """The message in a frame's body. Raises FrameError where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame of {len(body)} bytes is not JSON: {error}") from error


def take(buffer: bytearray) -> tuple[Any, int]:
    """``(message, bytes used)`` of a worker's first frame in a buffer; ``(None, 0)`` while it is incomplete.

    Raises FrameError for bytes that are no frame, and for one with more than ``MAX_REPLY`` bytes or ``MAX_VALUES`` values.
    """
    if len(buffer) < HEADER_BYTES:
        return None, 0
    end = HEADER_BYTES + length_of(bytes(buffer[:HEADER_BYTES]), MAX_REPLY)
    if len(buffer) < end:
        return None, 0
    body = bytes(buffer[HEADER_BYTES:end])
    if next(islice(_MARK.finditer(body), MAX_VALUES, None), None) is not None:
        raise FrameError(f"a frame of {len(body)} bytes has more than {MAX_VALUES} values")
    if (message := decode(body)) is None:
        raise FrameError("a frame says nothing")
    return message, end


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
