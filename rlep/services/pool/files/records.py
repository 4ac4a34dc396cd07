"""A pool as a directory of Parquet shards with a manifest, and back: every field, without loss.

An export that was interrupted starts again; an import may be repeated, since nothing is stored twice. What an import
reads is checked as if a stranger had written it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlep.core.errors import DataError, PoolError, RecordRefused
from rlep.core.files import sha256_of
from rlep.core.progress import Advance
from rlep.services.pool.files.export_rows import ExportRow, line_from, line_of
from rlep.services.pool.files.imported import Imported
from rlep.services.pool.files.manifest import (
    NAME,
    Manifest,
    Shard,
    check_shard,
    read_manifest,
    write_manifest,
)
from rlep.services.pool.files.parquet_shards import read_parquet, write_parquet
from rlep.services.pool.storage.draw import digest_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

SHARD_RECORDS, SHARD_TOKENS = 8192, 1 << 28
"""A shard ends with the question that reaches one of these."""
UNFINISHED = ".unfinished"
"""Folder of the shards of an export that is being written."""

_BATCH = 512
_BATCH_TOKENS = 1 << 22


def export_records(pool: PoolClient, directory: Path, *, advance: Advance = lambda _: None) -> Manifest:
    """Write a pool to a directory, quarantined records included; the manifest comes last.

    A pool that is written to meanwhile is seen prompt by prompt. Raises ``DataError`` where the directory holds something
    else or another process exports to it, ``RecordRefused`` for a damaged record.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        if (directory / NAME).exists():
            return _finished(pool, directory)
        unfinished = directory / UNFINISHED
        ours = ("part-", UNFINISHED) if unfinished.exists() else ()
        if others := sorted(path.name for path in directory.iterdir() if not path.name.startswith(ours)):
            raise DataError(f"{directory} holds other files, e.g. {others[0]}; an export needs a directory of its own")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        manifest = _Export(pool, unfinished, advance).write()
        # Only a directory with a manifest is an export: killed in between, the next one finds the folder and begins again.
        for shard in manifest.shards:
            (unfinished / shard.file).replace(directory / shard.file)
        write_manifest(directory, manifest)
        unfinished.rmdir()
    return manifest


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # The kernel gives the lock back, however this process ends.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{directory} is being written by another process: is this export already running?") from None
    finally:
        os.close(descriptor)


def _finished(pool: PoolClient, directory: Path) -> Manifest:
    """The manifest of a finished export that is the one asked for."""
    manifest = read_manifest(directory)
    if (manifest.pool, manifest.digest) != (pool.name, pool.digest()):
        raise DataError(
            f"{directory} holds a finished export of pool {manifest.pool} with digest {manifest.digest}; choose another directory"
        )
    return manifest


class _Export:
    """Shards, and the content ids in them."""

    def __init__(self, pool: PoolClient, directory: Path, advance: Advance) -> None:
        self._pool, self._directory, self._advance = pool, directory, advance
        self._ids: list[bytes] = []

    def write(self) -> Manifest:
        """Write all shards; what they hold."""
        shards, before = list[Shard](), self._pool.stats()
        held = groupby(self._pool.records(quarantined=True), key=lambda record: record.prompt_id)
        questions = ([line_of(record) for record in group] for _, group in held)
        for first in questions:
            shards.append(self._write(self._directory / f"part-{len(shards):05d}.parquet", chain([first], questions)))
        return Manifest(
            self._pool.name,
            before.tokenizer_digest,
            before.cap,
            before.sealed,
            digest_of(self._ids),
            tuple(shards),
            before.vocabulary,
        )

    def _write(self, path: Path, questions: Iterator[Sequence[ExportRow]]) -> Shard:
        """One shard: questions until it is long enough."""
        records = quarantined = tokens = 0
        last = ""

        def lines() -> Iterator[ExportRow]:
            nonlocal records, quarantined, tokens, last
            for question in questions:
                for line in question:
                    yield line
                    records += 1
                    quarantined += line.quarantined
                    tokens += len(line.trajectory.tokens)
                    last = line.trajectory.prompt_id
                    if not line.quarantined:
                        self._ids.append(bytes.fromhex(line.trajectory.content_id))
                self._advance(len(question))
                if records >= SHARD_RECORDS or tokens >= SHARD_TOKENS:
                    return

        write_parquet(path, lines())
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return Shard(path.name, path.stat().st_size, sha256_of(path), records, quarantined, last)


def import_records(pool: PoolClient, directory: Path, *, advance: Advance = lambda _: None) -> Imported:
    """Put an export's records into a pool; may be repeated, and into a pool that holds some already.

    Every shard is compared with the manifest first: where one is missing, damaged, a link or an archive, nothing is
    imported (``DataError``); nor is anything of another tokenizer (``PoolError``). A row that is wrong is refused alone.
    The export of a sealed pool seals this one, if it then has the same content.
    """
    manifest, before = read_manifest(directory), pool.stats()
    if manifest.tokenizer_digest != before.tokenizer_digest:
        raise PoolError(
            f"{directory} holds token ids of tokenizer {manifest.tokenizer_digest}; the pool's is {before.tokenizer_digest}"
        )
    # All of them before the first record: half of an import is harder to take back than none.
    for shard in manifest.shards:
        check_shard(directory, shard)
    if manifest.sealed and before.sealed == manifest.sealed:  # imported before
        return Imported(duplicates=manifest.records - sum(shard.quarantined for shard in manifest.shards))
    report = Imported()
    for shard in manifest.shards:
        path, batch, tokens, rows = directory / shard.file, list[tuple[ExportRow, bytes]](), 0, 0
        for rows, fields in enumerate(read_parquet(path), start=1):
            if rows > shard.records:
                raise DataError(f"{path} holds more than the {shard.records} records of the manifest")
            if (taken := _taken(fields, report)) is not None:
                batch.append(taken)
                tokens += len(taken[0].trajectory.tokens)
            if len(batch) >= _BATCH or tokens >= _BATCH_TOKENS:
                _put(pool, batch, report)
                batch, tokens = [], 0
            advance(1)
        _put(pool, batch, report)
        if rows != shard.records:
            raise DataError(f"{path} holds {rows} records; the manifest says {shard.records}")
    if manifest.sealed and pool.digest() == manifest.sealed:
        report.sealed = pool.seal()
    return report


def _taken(fields: dict[str, Any], report: Imported) -> tuple[ExportRow, bytes] | None:
    """A row that can be a record, or None with the reason in the report; whether the pool takes it, the pool says."""
    try:
        return line_from(fields)
    except RecordRefused as error:
        report.refuse(str(fields.get("content_id"))[:40], str(error)[:300])
        return None


def _put(pool: PoolClient, batch: Sequence[tuple[ExportRow, bytes]], report: Imported) -> None:
    kept, aside = (
        [(line.trajectory.prompt_id, record) for line, record in batch if line.quarantined is kind]
        for kind in (False, True)
    )
    added, quarantined = pool.add_records(kept), pool.add_records(aside, quarantined=True)
    report.inserted += added.inserted
    report.duplicates += added.duplicates
    report.quarantined += quarantined.inserted
    for content_id, reason in (*added.refused, *quarantined.refused):
        report.refuse(content_id, reason)
