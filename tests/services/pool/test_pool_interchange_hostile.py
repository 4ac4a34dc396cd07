"""What an import refuses: manifests that lie or lead outside, files that are not ours, rows that are wrong."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep import PoolClient
from rlep.core.errors import DataError, PoolError
from rlep.core.files import sha256_of
from rlep.services.pool.files.manifest import MAX_SHARD
from rlep.services.pool.files.parquet_shards import SCHEMA, _table, read_parquet
from rlep.services.pool.files.records import export_records, import_records
from tests.services.conftest import any_binary

OpenClient = Callable[..., PoolClient]
binary = any_binary  # what is refused is refused before Redis sees it


def test_records_of_another_tokenizer_are_not_imported(
    ten_questions: PoolClient, open_client: OpenClient, tmp_path: Path
) -> None:
    export_records(ten_questions, tmp_path)
    other = open_client("other-tokens", tokenizer="another")
    with pytest.raises(PoolError, match="holds token ids of tokenizer tokenizer-digest; the pool's is another"):
        import_records(other, tmp_path)
    edit(tmp_path, lambda manifest: manifest.update(tokenizer_digest="another"))  # a lie: the rows tell
    report = import_records(other, tmp_path)
    assert report.inserted == 0
    assert report.refused == {"its token ids are of tokenizer tokenizer-digest; the pool's is another": 30}
    assert len(report.examples) == 20


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def sign(directory: Path) -> None:
    """Make the manifest say of the shards what is true of them."""

    def change(manifest: dict[str, Any]) -> None:
        for shard in manifest["shards"]:
            path = directory / shard["file"]
            shard |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}

    edit(directory, change)


def shard(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["shards"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (shard(file="../secret/part-00000.parquet"), "a shard is part-00000.parquet and lies beside it"),
        (shard(file="/etc/passwd"), "names the file '/etc/passwd'"),
        (shard(file="part-00000.parquet\n"), "lies beside it"),
        (shard(file="part-00000.jsonl"), "names the file 'part-00000.jsonl'"),
        (shard(file=7), "file is int"),
        (shard(sha256="0" * 64), "has sha256 .* the manifest says 0000"),
        (shard(sha256="xyz"), "no sha256 of 64 hex digits"),
        (shard(bytes=12), "bytes; the manifest says 12"),
        (shard(bytes=MAX_SHARD + 1), f"at most {MAX_SHARD}"),
        (shard(records=3, quarantined=4), "3 records"),
        (shard(extra=1), "fields missing or unknown: extra"),
        (lambda manifest: manifest["shards"].append(manifest["shards"][0]), "lists a shard twice"),
        (lambda manifest: manifest.update(shards={}), "lists no shards"),
        (lambda manifest: manifest.update(shards=["part-00000.parquet"]), "a shard that is no object"),
        (lambda manifest: manifest.update(version=3), "has version 3; this rlep reads versions 1 to 2"),
        (lambda manifest: manifest.update(format="zip"), "no manifest of a pool's export"),
        (lambda manifest: manifest.update(kind="pickle"), "lists shards of kind 'pickle'; this rlep reads parquet"),
        (lambda manifest: manifest.update(kind="jsonl"), "lists shards of kind 'jsonl'; this rlep reads parquet"),
        (lambda manifest: manifest.pop("digest"), "fields missing or unknown: digest"),
        (lambda manifest: manifest.update(cap=True), "cap is bool"),
        (lambda manifest: manifest.update(cap=2**31), "cap is 2147483648, which no pool has"),
        (lambda manifest: manifest.update(vocabulary=10**400), "vocabulary is 10+, which no pool has"),
    ],
)
def test_a_manifest_that_lies_or_leads_outside_imports_nothing(
    ten_questions: PoolClient,
    twin: PoolClient,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    reason: str,
) -> None:
    out = tmp_path / "out"
    export_records(ten_questions, out)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "part-00000.parquet").write_bytes((out / "part-00000.parquet").read_bytes())
    edit(out, change)
    with pytest.raises(DataError, match=reason):
        import_records(twin, out)
    assert twin.stats().trajectories == 0


def to_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def to_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def to_dictionaries(path: Path) -> None:
    pq.write_table(pq.read_table(path), path, store_schema=False)


def to_other_columns(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1]]}), path)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (to_link, "is a link or no regular file"),
        (Path.unlink, "cannot be read: No such file"),
        (to_gzip, r"is an archive or compressed \(gzip\); unpack it first"),
        (lambda path: path.write_bytes(b"PAR1" + 64 * b"\0" + b"PAR1"), "not a readable Parquet file"),
        (to_dictionaries, "encodings that may unpack to any size: RLE_DICTIONARY"),
        (to_other_columns, r"other columns than those of a pool's export: \['tokens'\]"),
    ],
)
def test_a_shard_that_is_no_plain_parquet_of_ours_imports_nothing(
    ten_questions: PoolClient, twin: PoolClient, tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    export_records(ten_questions, tmp_path)
    harm(tmp_path / "part-00000.parquet")
    if (tmp_path / "part-00000.parquet").exists():
        sign(tmp_path)
    with pytest.raises(DataError, match=reason):
        import_records(twin, tmp_path)
    assert twin.stats().trajectories == 0


def test_a_manifest_is_not_read_before_its_size_is_known(ten_questions: PoolClient, tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(DataError, match="17825792 bytes; at most 16777216"):
        import_records(ten_questions, tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="is not JSON"):
        import_records(ten_questions, tmp_path)


def rewrite(directory: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Write the first shard with other rows, as an honest manifest says."""
    path = directory / "part-00000.parquet"
    rows = list(read_parquet(path))
    change(rows)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False, store_schema=False) as writer:
        writer.write_table(_table(rows))
    sign(directory)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": np.array([1, 2])}, "content id .* is not that of its tokens"),
        ({"tokens": np.array([-1])}, "token ids run from -1"),
        ({"tokens": np.array([], np.int32)}, "response has 0 tokens"),
        ({"logprobs": np.array([-0.5])}, "log-probs are not a float array"),
        ({"logprobs": np.array([np.inf, 0.0])}, "NaN or infinite"),
        ({"logprobs": None}, "precision 'float16' does not fit"),
        ({"precision": "bfloat16"}, "precision 'bfloat16' does not fit"),
        ({"status": "wrong"}, "its verdict is wrong"),
        ({"status": "fine"}, "verdict status 'fine' is unknown"),
        ({"prompt_id": "q 0"}, "is not 1 to 128 letters"),
        ({"metadata": {"k": "x" * 70_000}}, "at most 65535"),
        ({"metadata": "{"}, "its metadata is no JSON$"),
        ({"metadata": "[" * 100_000}, "its metadata is no JSON$"),
        ({"metadata": '["k"]'}, "its metadata is no JSON object of texts"),
        ({"metadata": '{"k": 1}'}, "its metadata is no JSON object of texts"),
        ({"tokenizer_digest": "another"}, "its token ids are of tokenizer another"),
    ],
)
def test_a_row_that_is_wrong_is_refused_alone(
    ten_questions: PoolClient, twin: PoolClient, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    export_records(ten_questions, tmp_path)
    name = next(read_parquet(tmp_path / "part-00000.parquet"))["content_id"]
    rewrite(tmp_path, lambda rows: rows[0].update(change))
    report = import_records(twin, tmp_path)
    assert (report.inserted, report.refused.total()) == (29, 1)
    assert report.examples[0][0] == name
    (found,) = report.refused
    assert re.search(reason, found), found


def test_shards_with_more_or_fewer_rows_than_said_are_refused(
    ten_questions: PoolClient, twin: PoolClient, tmp_path: Path
) -> None:
    export_records(ten_questions, tmp_path)
    rewrite(tmp_path, lambda rows: rows.append(rows[0]))
    with pytest.raises(DataError, match="more than the 6 records"):
        import_records(twin, tmp_path)
    rewrite(tmp_path, lambda rows: rows.__delitem__(slice(5, None)))
    with pytest.raises(DataError, match="holds 5 records; the manifest"):
        import_records(twin, tmp_path)
