"""Files that appear whole: written beside their place, put on disk, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_with(path: Path, *, private: bool = False, shared: bool = False) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; when the block ends well, it takes the place of ``path``.

    A reader sees the old file or the new one, never a part, also after a power failure. ``private``: the file has mode
    600 from its first byte. ``shared``: several threads or processes may replace it at once; the last one wins.
    """
    own = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    part = path.with_name(f".{path.name}{own}.part")
    part.unlink(missing_ok=True)  # of a writer that was killed
    try:
        part.touch(mode=0o600 if private else 0o666, exist_ok=False)  # a link that somebody puts there is not followed
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes, *, private: bool = False, shared: bool = False) -> None:
    """Put ``content``, text as UTF-8, in the place of ``path`` as ``replace_with`` does."""
    with replace_with(path, private=private, shared=shared) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file for readers, keys in order, as ``write_whole`` does."""
    write_whole(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def sha256_of(path: Path) -> str:
    """Of a file's bytes, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
