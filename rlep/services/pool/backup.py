"""A pool in one file, and back: records byte for byte, with what is quarantined and what is pinned.

Layout, little endian: ``RLEPBK1\\n``, then a head item and one item a record, then a tail item. An item is
``kind u8 | pinned u8 | name bytes u16 | body bytes u32 | content id 16 bytes | name | body``: the head's name is the
tokenizer, its body the digest of a sealed pool; a record's name is its prompt id; the tail's body is the number of records
(u64) and the blake2b-128 of every byte before the tail. A file without its tail is refused before anything is restored.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlep.core.errors import PoolError, RecordRefused
from rlep.services.pool.pool import Pool, entry_of
from rlep.services.pool.storage.codec import decode
from rlep.services.pool.storage.store import NewRecord

_MAGIC = b"RLEPBK1\n"
_HEAD, _RECORD, _QUARANTINED, _TAIL = 0, 1, 2, 255
_ITEM = struct.Struct("<BBHI16s")
_COUNT = struct.Struct("<Q")
_LARGEST = 1 << 26
_BATCH = 512


class Item(NamedTuple):
    """One item of a backup."""

    kind: int
    pinned: bool
    name: str
    content_id: bytes
    body: bytes


class Restored(NamedTuple):
    """What a restore did."""

    inserted: int
    duplicates: int
    refused: tuple[tuple[str, str], ...]
    quarantined: int
    sealed: str | None
    """Digest of the pool where the backup was of a sealed one: it is sealed now, too."""


def backup(pool: Pool, path: Path, *, advance: Callable[[int], None] = lambda _: None) -> int:
    """Write a pool to a file, which appears as a whole or not at all; how many records it holds.

    ``advance`` is told of each record. A pool that is written to meanwhile is seen prompt by prompt: each as it was at
    one moment.
    """
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        count, digest = 0, hashlib.blake2b(digest_size=16)
        for raw, is_record in _items(pool):
            file.write(raw)
            digest.update(raw)
            count += is_record
            advance(is_record)
        file.write(_tail(count, digest.digest()))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return count


def tokenizer_of_backup(path: Path) -> str:
    """The tokenizer whose token ids a backup holds. Raises ``PoolError`` where the file is none."""
    return next(_read(path)).name


def restore(pool: Pool, path: Path, *, advance: Callable[[int], None] = lambda _: None) -> Restored:
    """Put a backup's records into a pool; may be repeated, and into a pool that holds some already.

    A backup of a sealed pool seals this one, if it then has the same content. Raises ``PoolError`` where the file is damaged
    (nothing is restored then), of another tokenizer, or does not give the sealed content.
    """
    _check_whole(path)
    items = _read(path)
    head = next(items)
    if head.name != pool.tokenizer_digest:
        raise PoolError(f"{path} holds token ids of tokenizer {head.name}; the pool's is {pool.tokenizer_digest}")
    total, batch = Restored(0, 0, (), 0, None), list[Item]()
    for item in items:
        if item.kind != _TAIL:
            batch.append(item)
        if item.kind == _TAIL or len(batch) == _BATCH:
            total, done, batch = _restored(pool, path, batch, total), len(batch), []
            advance(done)
    sealed = head.body.decode() or None
    if sealed:
        if (found := pool.digest()) != sealed:
            raise PoolError(f"{path} is of a pool sealed with digest {sealed}; pool {pool.name} now has {found}")
        pool.seal()
    return total._replace(sealed=sealed)


def _items(pool: Pool) -> Iterator[tuple[bytes, bool]]:
    """The bytes of the head and of each record, and whether it is one."""
    head = Item(_HEAD, False, pool.tokenizer_digest, bytes(16), (pool.sealed or "").encode())
    yield _MAGIC + _packed(head), False
    for prompt_id in pool.store.all_prompts():
        records, quarantined, pins = pool.store.everything(prompt_id)
        for kind, held in ((_RECORD, records), (_QUARANTINED, quarantined)):
            for content_id in sorted(held):
                item = Item(kind, content_id in pins, prompt_id, content_id, held[content_id])
                yield _packed(item), True


def _packed(item: Item) -> bytes:
    name = item.name.encode()
    return _ITEM.pack(item.kind, item.pinned, len(name), len(item.body), item.content_id) + name + item.body


def _read(path: Path) -> Iterator[Item]:
    """The items of a backup. Raises ``PoolError`` where it ends early or is none."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise PoolError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise PoolError(f"{path} is no backup of a pool")
        kind = _HEAD
        while kind != _TAIL:
            kind, pinned, name_bytes, body_bytes, content_id = _ITEM.unpack(_exactly(file, _ITEM.size, path))
            if body_bytes > _LARGEST:
                raise PoolError(f"{path} is damaged: an item claims {body_bytes} bytes")
            name = _exactly(file, name_bytes, path).decode(errors="replace")
            yield Item(kind, bool(pinned), name, content_id, _exactly(file, body_bytes, path))


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    raw = file.read(size)
    if len(raw) != size:
        raise PoolError(f"{path} ends too early: it was not written to its end, or was cut")
    return raw


def _check_whole(path: Path) -> None:
    """Compare a backup, byte for byte, with the count and the digest in its tail."""
    count = sum(item.kind in (_RECORD, _QUARANTINED) for item in _read(path))
    digest, left = hashlib.blake2b(digest_size=16), path.stat().st_size - len(_tail(0, bytes(16)))
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
        if file.read() != _tail(count, digest.digest()):
            raise PoolError(f"{path} is damaged: its content does not match its digest")


def _tail(count: int, digest: bytes) -> bytes:
    return _packed(Item(_TAIL, False, "", bytes(16), _COUNT.pack(count) + digest))


def _entry(path: Path, item: Item) -> NewRecord:
    try:
        trajectory = decode(item.body, item.name)
    except RecordRefused as error:
        raise PoolError(f"{path}: trajectory {item.content_id.hex()}: {error}") from None
    if trajectory.content_id != item.content_id.hex():
        raise PoolError(f"{path}: trajectory {item.content_id.hex()} holds the tokens of {trajectory.content_id}")
    return entry_of(trajectory, item.body)


def _restored(pool: Pool, path: Path, items: list[Item], total: Restored) -> Restored:
    """Put some items into the pool, and add them up."""
    aside = [_entry(path, item) for item in items if item.kind == _QUARANTINED]
    report = pool.add_entries([_entry(path, item) for item in items if item.kind == _RECORD])
    for entry in aside:
        pool.remove(entry.prompt_id, [entry.content_id.hex()], quarantine=True)
    for item in items:
        if item.pinned:
            pool.pin(item.name, [item.content_id.hex()])
    return Restored(
        total.inserted + report.inserted,
        total.duplicates + report.duplicates,
        total.refused + report.refused,
        total.quarantined + pool.store.set_aside(aside),
        None,
    )
