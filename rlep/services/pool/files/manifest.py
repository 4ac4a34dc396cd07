"""``manifest.json`` of an export: which shards there are and what they hash to; nothing outside the directory is read."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlep.core.errors import DataError
from rlep.core.files import sha256_of, write_whole

NAME = "manifest.json"
FORMAT, VERSION, KIND = "rlep-pool", 2, "parquet"
READ = (1, 2)
"""Versions that are read. In version 1 metadata is a map instead of JSON text."""
MAX_MANIFEST = 16 << 20
MAX_SHARD = 8 << 30
"""Bytes; a larger manifest or shard is refused unread."""

_FILE = re.compile(r"part-\d{5,9}\.parquet")
_HEX = re.compile(r"[0-9a-f]{64}")
_ARCHIVES = {
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
}
_TAR_AT = 257


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of an export."""

    file: str
    bytes: int
    sha256: str
    records: int
    """Quarantined ones included."""
    quarantined: int
    last_prompt: str
    """Its last prompt id: shards hold whole prompts, ascending."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole export."""

    pool: str
    tokenizer_digest: str
    cap: int
    """Most trajectories of a prompt in the pool."""
    sealed: str | None
    """Digest of the pool where it was sealed."""
    digest: str
    """``Pool.digest`` of the records that are not quarantined: a pool that holds these and no others has it, too."""
    shards: tuple[Shard, ...]
    vocabulary: int | None = None
    """Ids of the pool's vocabulary; left out of the file where the pool does not know it."""

    @property
    def records(self) -> int:
        """In all shards, quarantined ones included."""
        return sum(shard.records for shard in self.shards)

    @property
    def quarantined(self) -> int:
        """In all shards."""
        return sum(shard.quarantined for shard in self.shards)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest, which appears as a whole or not at all."""
    tree = asdict(manifest)
    if manifest.vocabulary is None:
        del tree["vocabulary"]
    write_whole(directory / NAME, json.dumps({"format": FORMAT, "version": VERSION, "kind": KIND} | tree, indent=1))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory. Raises ``DataError`` for one that is missing, malformed, or names other files."""
    path = directory / NAME
    check_plain(path, MAX_MANIFEST)
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
        raise DataError(f"{path} is no manifest of a pool's export")
    if (version := tree.pop("version", None)) not in READ:
        raise DataError(f"{path} has version {version!r:.40}; this rlep reads versions {READ[0]} to {READ[-1]}")
    if (kind := tree.pop("kind", None)) != KIND:
        raise DataError(f"{path} lists shards of kind {kind!r:.40}; this rlep reads {KIND}: export the pool again")
    shards = tree.pop("shards", None)
    if not isinstance(shards, list):
        raise DataError(f"{path} lists no shards")
    wanted = {"pool": str, "tokenizer_digest": str, "cap": int, "sealed": (str, type(None)), "digest": str}
    _check_fields(path, tree, wanted | ({"vocabulary": int} if "vocabulary" in tree else {}))
    for name in ("cap", "vocabulary"):
        if not 0 <= tree.get(name, 0) < 2**31:
            raise DataError(f"{path}: {name} is {tree[name]!r:.40}, which no pool has")
    manifest = Manifest(shards=tuple(_shard_of(path, shard) for shard in shards), **tree)
    if len({shard.file for shard in manifest.shards}) != len(manifest.shards):
        raise DataError(f"{path} lists a shard twice")
    return manifest


def _shard_of(path: Path, tree: object) -> Shard:
    """A shard as the manifest at ``path`` lists it. Raises ``DataError``."""
    if not isinstance(tree, dict):
        raise DataError(f"{path} lists a shard that is no object")
    whole = {"bytes": int, "records": int, "quarantined": int}
    _check_fields(path, tree, whole | {"file": str, "sha256": str, "last_prompt": str})
    shard = Shard(**tree)
    if not _FILE.fullmatch(shard.file):
        raise DataError(f"{path} names the file {shard.file!r:.80}; a shard is part-00000.{KIND} and lies beside it")
    if not 0 <= shard.quarantined <= shard.records or not 0 <= shard.bytes <= MAX_SHARD:
        raise DataError(f"{path}: {shard.file} has {shard.records} records in {shard.bytes} bytes; at most {MAX_SHARD}")
    if not _HEX.fullmatch(shard.sha256):
        raise DataError(f"{path}: {shard.file} has no sha256 of 64 hex digits")
    return shard


def check_shard(directory: Path, shard: Shard) -> None:
    """Compare a shard with what the manifest says of it. Raises ``DataError`` saying what differs."""
    path = directory / shard.file
    size = check_plain(path, MAX_SHARD)
    if size != shard.bytes:
        raise DataError(f"{path} has {size} bytes; the manifest says {shard.bytes}")
    if (found := sha256_of(path)) != shard.sha256:
        raise DataError(f"{path} has sha256 {found}; the manifest says {shard.sha256}")


def check_plain(path: Path, limit: int) -> int:
    """The size of a regular file, no link, no archive, of at most ``limit`` bytes. Raises ``DataError``."""
    try:
        found = path.lstat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a link or no regular file, which an import does not follow")
    if found.st_size > limit:
        raise DataError(f"{path} has {found.st_size} bytes; at most {limit}")
    if kind := archive_kind(path):
        raise DataError(f"{path} is an archive or compressed ({kind}); unpack it first, then import what is in it")
    return found.st_size


def archive_kind(path: Path) -> str | None:
    """Return the kind of archive or compressed file by its first bytes, or None."""
    with path.open("rb") as file:
        head = file.read(_TAR_AT + 5)
    # A tar has no mark at its beginning, only within the header of its first file.
    if head[_TAR_AT:] == b"ustar":
        return "tar"
    return next((kind for magic, kind in _ARCHIVES.items() if head.startswith(magic)), None)


def _check_fields(path: Path, tree: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    if wrong := sorted(set(kinds) ^ set(tree)):
        raise DataError(f"{path}: fields missing or unknown: {', '.join(wrong)}"[:300])
    for name, kind in kinds.items():
        if not isinstance(tree[name], kind) or isinstance(tree[name], bool):
            raise DataError(f"{path}: {name} is {type(tree[name]).__name__}, which it should not be")
