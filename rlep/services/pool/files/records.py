"""A pool as a directory of shards with a manifest, Parquet or JSON lines, and back: every field, without loss.

An export that was interrupted goes on behind its last whole shard; an import may be repeated, since nothing is stored
twice. What an import reads is checked as if a stranger had written it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from rlep.core.errors import DataError, PoolError, RecordRefused
from rlep.core.jsonl import JsonLines, read_lines
from rlep.core.types import beyond_vocabulary
from rlep.services.pool.files.export_rows import ExportRow, line_from, line_of
from rlep.services.pool.files.jsonl_shards import read_jsonl, write_jsonl
from rlep.services.pool.files.manifest import (
    NAME,
    Kind,
    Manifest,
    Shard,
    check_shard,
    read_manifest,
    sha256_of,
    shard_of,
    write_manifest,
)
from rlep.services.pool.files.parquet_shards import read_parquet, write_parquet
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.draw import digest_of
from rlep.services.pool.storage.scan import scan
from rlep.services.pool.storage.store import NewRecord

SHARD_RECORDS, SHARD_TOKENS = 8192, 1 << 28
"""A shard ends with the question that reaches one of these."""
JOURNAL = "export.jsonl"
"""The shards written so far, while an export is not finished."""
EXAMPLES = 20

_BATCH = 512
_BATCH_TOKENS = 1 << 22
_WRITERS = {"parquet": write_parquet, "jsonl": write_jsonl}
_READERS = {"parquet": read_parquet, "jsonl": read_jsonl}

Advance = Callable[[int], None]
"""Told how many more records are done."""


@dataclass(slots=True)
class Imported:
    """What became of the records or responses of an import."""

    inserted: int = 0
    duplicates: int = 0
    """In the pool before."""
    quarantined: int = 0
    """Set aside in the pool, as they were where they come from, and not before."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → how many."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    """(content id or place, reason) of the first few refused."""
    sealed: str | None = None
    """Digest of the pool where the import sealed it."""

    def refuse(self, name: str, reason: str, *, group: str = "") -> None:
        """Count one; ``group`` is the reason without what is particular to this one."""
        self.refused[group or reason] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append((name, reason))


def export_records(pool: Pool, directory: Path, kind: Kind, *, advance: Advance = lambda _: None) -> Manifest:
    """Write a pool to a directory, quarantined records included; the manifest comes last.

    Shards of an interrupted export of the same pool are kept. A pool that is written to meanwhile is seen prompt by
    prompt. Raises ``DataError`` where the directory holds something else, ``RecordRefused`` for a damaged record.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / NAME).exists():
        return _finished(pool, directory, kind)
    known = ("part-", JOURNAL, NAME) if (directory / JOURNAL).exists() else ()
    if others := sorted(path.name for path in directory.iterdir() if not path.name.startswith(known)):
        raise DataError(f"{directory} holds other files, e.g. {others[0]}; an export needs a directory of its own")
    with JsonLines(directory / JOURNAL) as journal:
        export = _Export(pool, directory, kind, advance)
        export.resume(journal)
        for shard in export.shards_left():
            journal.append(asdict(shard))
        manifest = export.manifest()
        write_manifest(directory, manifest)
        journal.path.unlink()
    return manifest


def _finished(pool: Pool, directory: Path, kind: Kind) -> Manifest:
    """The manifest of a finished export that is the one asked for."""
    manifest = read_manifest(directory)
    if (manifest.pool, manifest.kind, manifest.digest) != (pool.name, kind, pool.digest()):
        raise DataError(
            f"{directory} holds a finished export of pool {manifest.pool} as {manifest.kind} with digest "
            f"{manifest.digest}; choose another directory"
        )
    return manifest


class _Export:
    """An unfinished export: the shards that are whole, and the content ids in them."""

    def __init__(self, pool: Pool, directory: Path, kind: Kind, advance: Advance) -> None:
        self._pool, self._directory, self._kind, self._advance = pool, directory, kind, advance
        self._shards: list[Shard] = []
        self._ids: list[bytes] = []

    def resume(self, journal: JsonLines) -> None:
        """Take over what an interrupted export of this pool left whole; what follows a damaged shard is written anew."""
        head = {"pool": self._pool.name, "tokenizer_digest": self._pool.tokenizer_digest, "kind": self._kind}
        lines = read_lines(journal.path)
        if not lines:
            journal.append(head)
        elif lines[0] != head:
            raise DataError(f"{self._directory} holds an unfinished export of {lines[0]}; choose another directory")
        listed: list[Shard] = []
        for line in lines[1:]:
            shard = shard_of(journal.path, line, self._kind)
            listed = [*listed[: int(shard.file[5:].partition(".")[0])], shard]  # written again: what followed is void
        for number, shard in enumerate(listed):
            try:
                check_shard(self._directory, shard)
            except DataError:
                break
            if shard.file != self._name(number):
                break
            rows = _READERS[self._kind](self._directory / shard.file)
            self._ids += (bytes.fromhex(fields["content_id"]) for fields in rows if not fields["quarantined"])
            self._shards.append(shard)
            self._advance(shard.records)

    def shards_left(self) -> Iterator[Shard]:
        """Write the other shards, each whole on disk when it is given."""
        prompts = self._pool.store.all_prompts()
        if self._shards:
            prompts = [prompt_id for prompt_id in prompts if prompt_id > self._shards[-1].last_prompt]
        held = groupby(scan(self._pool.store, prompts, quarantined=True), key=lambda one: one.prompt_id)
        questions = ([line_of(one) for one in group] for _, group in held)
        for first in questions:
            shard = self._write(self._directory / self._name(len(self._shards)), chain([first], questions))
            self._shards.append(shard)
            yield shard

    def manifest(self) -> Manifest:
        """Of the shards written."""
        pool = self._pool
        return Manifest(
            self._kind,
            pool.name,
            pool.tokenizer_digest,
            pool.cap,
            pool.sealed,
            digest_of(self._ids),
            tuple(self._shards),
            pool.vocabulary,
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

        fresh = path.with_name(f"{path.name}.new")
        _WRITERS[self._kind](fresh, lines())
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
        return Shard(path.name, path.stat().st_size, sha256_of(path), records, quarantined, last)

    def _name(self, number: int) -> str:
        return f"part-{number:05d}.{self._kind}"


def import_records(pool: Pool, directory: Path, *, advance: Advance = lambda _: None) -> Imported:
    """Put an export's records into a pool; may be repeated, and into a pool that holds some already.

    Every shard is compared with the manifest first: where one is missing, damaged, a link or an archive, nothing is
    imported (``DataError``); nor is anything of another tokenizer (``PoolError``). A row that is wrong is refused alone.
    The export of a sealed pool seals this one, if it then has the same content.
    """
    manifest = read_manifest(directory)
    if manifest.tokenizer_digest != pool.tokenizer_digest:
        raise PoolError(
            f"{directory} holds token ids of tokenizer {manifest.tokenizer_digest}; the pool's is {pool.tokenizer_digest}"
        )
    for shard in manifest.shards:
        check_shard(directory, shard)
    if manifest.sealed and pool.sealed == manifest.sealed:  # imported before
        return Imported(duplicates=manifest.records - sum(shard.quarantined for shard in manifest.shards))
    report = Imported()
    for shard in manifest.shards:
        path, batch, tokens, rows = directory / shard.file, list[tuple[ExportRow, NewRecord]](), 0, 0
        for rows, fields in enumerate(_READERS[manifest.kind](path), start=1):
            if rows > shard.records:
                raise DataError(f"{path} holds more than the {shard.records} records of the manifest")
            if (taken := _taken(pool, fields, report)) is not None:
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


def _taken(pool: Pool, fields: dict[str, Any], report: Imported) -> tuple[ExportRow, NewRecord] | None:
    """A row that may go into the pool, or None with the reason in the report."""
    try:
        line, entry = line_from(fields)
        trajectory = line.trajectory
        if trajectory.provenance.tokenizer_digest != pool.tokenizer_digest:
            raise RecordRefused(f"its token ids are of tokenizer {trajectory.provenance.tokenizer_digest}")
        if trajectory.verdict.status != pool.holds and not line.quarantined:
            raise RecordRefused(f"its verdict is {trajectory.verdict.status}; the pool holds only {pool.holds} answers")
        if wrong := beyond_vocabulary(trajectory.tokens, pool.vocabulary):
            raise RecordRefused(f"prompt {trajectory.prompt_id}: {wrong}")
    except RecordRefused as error:
        report.refuse(str(fields.get("content_id"))[:40], str(error)[:300])
        return None
    return line, entry


def _put(pool: Pool, batch: Sequence[tuple[ExportRow, NewRecord]], report: Imported) -> None:
    added = pool.add_entries([entry for line, entry in batch if not line.quarantined])
    report.inserted += added.inserted
    report.duplicates += added.duplicates
    for content_id, reason in added.refused:
        report.refuse(content_id, reason)
    aside = [entry for line, entry in batch if line.quarantined]
    for entry in aside:
        pool.remove(entry.prompt_id, [entry.content_id.hex()], quarantine=True)
    report.quarantined += pool.store.set_aside(aside)
