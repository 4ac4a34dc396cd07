"""A pool in files of Parquet, and back to the byte; what was interrupted starts again, what is hostile is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from rlep import PoolClient
from rlep.cli.cards import pool_card
from rlep.core.errors import DataError, PoolError, RecordRefused
from rlep.core.files import sha256_of
from rlep.core.types import Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.files import parquet_shards
from rlep.services.pool.files.parquet_shards import SCHEMA
from rlep.services.pool.files.records import export_records, import_records
from rlep.services.pool.storage.store import NewRecord
from tests.services.conftest import MakeTrajectory, OpenClient, OpenPool


def contents(pool: PoolClient) -> tuple[object, ...]:
    """Every byte of a pool's records and quarantine."""
    return tuple(pool.records(quarantined=True))


def odd_ones(make: MakeTrajectory) -> list[Trajectory]:
    """Records that use every field at its edges."""
    plain = make("q0", [5, 2**31 - 1, 0])
    return [
        plain,
        replace(make("q1", [1]), logprobs=None, metadata={}, sample_id="", created_at=0.0),
        replace(make("q1", [2, 3]), logprobs=np.array([-0.0, -1e-7], np.float32), finish_reason="length"),
        replace(make("q2", [4, 4]), logprobs=np.array([-70000.0, -0.1], np.float32)),  # beyond float16: kept as float32
        replace(
            make("q2", [9]),
            verdict=Verdict("correct", None, "regex:é\n", "α", "fast", 1e-9),
            provenance=Provenance(
                "p\n",
                -3,
                "tokenizer-digest",
                Sampling(0.7, 0.95, 20, 48, 0.05, 1.1, ("\n",), (7,)),
                "processed",
                "bfloat16",
                "t",
            ),
            metadata={"ключ": "\x1b[31m", "": "x" * 5000},
        ),
        replace(
            make("q3", [9]), verdict=Verdict("correct", "9", "python:f", "1", score=0.1, parts={"b": 0.3, "a": -2.0})
        ),
        episode(make("q3", [1, 2, 3, 4])),
    ]


def episode(made: Trajectory) -> Trajectory:
    """Four tokens, of which an environment wrote the second."""
    mask = np.array([True, False, True, True])
    assert made.logprobs is not None
    logprobs = np.where(mask, made.logprobs, 0).astype(np.float32)
    return replace(made, sampled=mask, logprobs=logprobs, provenance=replace(made.provenance, environment_digest="e1"))


def test_an_episode_is_drawn_with_its_mask(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    pool = open_client("played")
    pool.add([episode(trajectory("q3", [1, 2, 3, 4])), trajectory("q3", [5])])
    drawn = pool.sample(["q3"], 2, seed=0, step=0, minimum=1).trajectories()["q3"]
    masks = {tuple(one.tokens.tolist()): one.sampled for one in drawn}
    assert masks[5,] is None
    found = masks[1, 2, 3, 4]
    assert found is not None
    assert found.tolist() == [True, False, True, True]


def test_an_export_comes_back_to_the_byte(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client("origin", precision="float32")
    batch = [*odd_ones(trajectory), *(trajectory(f"q{i % 7}", [i, i + 1]) for i in range(60))]
    assert pool.add(batch).inserted == 67
    halves = open_client("origin", precision="float16")
    assert halves.add([trajectory("q8", [1, 1]), trajectory("q8", [1, 2])]).inserted == 2
    pool.remove("q0", [batch[0].content_id], quarantine=True)
    manifest = export_records(pool, tmp_path)
    assert (manifest.records, manifest.digest, manifest.cap) == (69, pool.digest(), 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "part-00000.parquet"]
    report = import_records(twin, tmp_path)
    assert (report.inserted, report.duplicates, report.quarantined, report.refused.total()) == (68, 0, 1, 0)
    assert contents(twin) == contents(pool)
    assert replace(twin.stats(), redis_bytes=0) == replace(pool.stats(), redis_bytes=0)
    assert twin.digest() == manifest.digest
    again = import_records(twin, tmp_path)
    assert (again.inserted, again.duplicates, again.quarantined, again.refused.total()) == (0, 68, 0, 0)
    assert contents(twin) == contents(pool)


def test_other_programs_read_what_was_exported(
    open_client: OpenClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client()
    one = trajectory("q0", [7, 8, 2])
    pool.add([one, trajectory("q1", [3])])
    export_records(pool, tmp_path)
    row = pq.read_table(tmp_path / "part-00000.parquet").to_pylist()[0]
    assert row["content_id"] == one.content_id
    assert (row["tokens"], row["logprobs"], row["precision"]) == ([7, 8, 2], [-0.5] * 3, "float16")
    assert (row["verifier"], row["extracted"], row["metadata"]) == ("math", "42", '{"source": "test"}')


def test_hugging_face_datasets_load_an_export_and_what_a_push_uploads(
    open_client: OpenClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client()
    made = [trajectory("q0", [7, 8, 2]), replace(trajectory("q1", [3]), metadata={"k": 'ü "x"'}), *odd_ones(trajectory)]
    pool.add(made)
    manifest = export_records(pool, tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text(str(pool_card("org/pool", manifest, pool.stats())))
    by_card = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    shards = str(tmp_path / "out" / "part-*.parquet")
    by_file = load_dataset("parquet", data_files=shards, split="train", cache_dir=str(tmp_path / "cache"))
    assert by_card.to_list() == by_file.to_list()
    rows = {row["content_id"]: row for row in by_card}
    assert len(rows) == len(made)
    for one in made:
        row = rows[one.content_id]
        assert row["tokens"] == one.tokens.tolist()
        assert one.metadata.items() <= json.loads(row["metadata"]).items()


def test_an_export_of_manifest_version_1_comes_back_to_the_byte(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    """Its metadata is a map; with pins it is of rlep 0.1."""
    pool = open_client("with-maps")
    pool.add(odd_ones(trajectory))
    for number, schema in enumerate((parquet_shards._MAPS, parquet_shards._WITH_PINS)):
        directory = tmp_path / str(number)
        export_records(pool, directory)
        path = directory / "part-00000.parquet"
        columns = {
            name: values.combine_chunks() for name, values in zip(SCHEMA.names, pq.read_table(path), strict=True)
        }
        texts = [[*json.loads(text.as_py()).items()] for text in columns["metadata"]]
        columns |= {
            "metadata": pa.array(texts, schema.field("metadata").type),
            "pinned": pa.array([False] * len(texts)),
        }
        table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
        pq.write_table(table, path, compression="zstd", use_dictionary=False, store_schema=False)
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest["shards"][0] |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        (directory / "manifest.json").write_text(json.dumps(manifest | {"version": 1}))
        report = import_records(twin, directory)
        assert (report.inserted, report.duplicates, report.refused.total()) == ((7, 0, 0), (0, 7, 0))[number]
        assert contents(twin) == contents(pool)


def test_wrong_answers_go_into_a_pool_of_wrong_answers_only(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client("bad.failures")
    pool.add([trajectory("q0", [1], status="wrong")])
    export_records(pool, tmp_path)
    assert import_records(twin, tmp_path).refused == {"its verdict is wrong; the pool holds only correct answers": 1}
    assert import_records(open_client("worse.failures"), tmp_path).inserted == 1


def test_an_empty_pool_makes_an_export_without_shards(open_client: OpenClient, tmp_path: Path) -> None:
    pool = open_client()
    assert export_records(pool, tmp_path / "out").shards == ()
    assert import_records(pool, tmp_path / "out").inserted == 0


class Stopped(Exception):
    """The process ended here."""


def stop_after(records: int) -> Callable[[int], None]:
    left = [records]

    def advance(by: int) -> None:
        left[0] -= by
        if left[0] < 0:
            raise Stopped

    return advance


def test_an_interrupted_export_starts_again(ten_questions: PoolClient, tmp_path: Path) -> None:
    whole = export_records(ten_questions, tmp_path / "whole")
    assert [shard.records for shard in whole.shards] == [6] * 5
    torn = tmp_path / "torn"
    with pytest.raises(Stopped):
        export_records(ten_questions, torn, advance=stop_after(15))  # in the third shard
    assert [path.name for path in torn.iterdir()] == [".unfinished"]
    with pytest.raises(DataError, match=r"manifest\.json cannot be read: No such file"):
        import_records(ten_questions, torn)
    (torn / "part-00000.parquet").write_text("moved up, then killed")
    done: list[int] = []
    assert export_records(ten_questions, torn, advance=done.append) == whole
    assert sum(done) == 30
    assert {path.name: sha256_of(path) for path in torn.iterdir()} == {
        path.name: sha256_of(path) for path in (tmp_path / "whole").iterdir()
    }
    assert export_records(ten_questions, torn) == whole  # finished: nothing to do


def test_an_export_takes_no_directory_that_holds_something_else(
    ten_questions: PoolClient, open_client: OpenClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    (tmp_path / "part-00000.parquet").write_text("somebody's")
    with pytest.raises(DataError, match=r"holds other files, e\.g\. part-00000\.parquet"):
        export_records(ten_questions, tmp_path)
    assert (tmp_path / "part-00000.parquet").read_text() == "somebody's"
    out = tmp_path / "out"

    def another(_: int) -> None:
        with pytest.raises(DataError, match="being written by another process"):
            export_records(ten_questions, out)

    export_records(ten_questions, out, advance=another)
    ten_questions.add([trajectory("q0", [77])])
    with pytest.raises(DataError, match="holds a finished export of pool"):
        export_records(ten_questions, out)


def test_a_damaged_record_ends_an_export_by_name(
    open_client: OpenClient, open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client()
    pool.add([trajectory("q0", [1]), trajectory("q0", [2])])
    open_pool().add_entries([NewRecord("q1", b"\7" * 16, "p@1\nmath@1", b"no record")])
    with pytest.raises(RecordRefused, match=f"trajectory {'07' * 16} of prompt q1: record of 9 bytes is shorter"):
        export_records(pool, tmp_path)


def test_an_interrupted_import_is_repeated(ten_questions: PoolClient, twin: PoolClient, tmp_path: Path) -> None:
    export_records(ten_questions, tmp_path)
    with pytest.raises(Stopped):
        import_records(twin, tmp_path, advance=stop_after(14))  # two shards of six are in
    before = twin.stats().trajectories
    assert before == 12
    report = import_records(twin, tmp_path)
    assert (report.inserted, report.duplicates) == (18, 12)
    assert twin.digest() == ten_questions.digest()


def test_the_export_of_a_sealed_pool_seals_the_pool_that_has_its_content(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client("sealed-origin")
    batch = [trajectory("q0", [i]) for i in range(4)]
    pool.add(batch)
    digest = pool.seal()
    export_records(pool, tmp_path)
    assert import_records(twin, tmp_path).sealed == digest == twin.stats().sealed
    assert contents(twin) == contents(pool)
    again = import_records(twin, tmp_path)
    assert (again.inserted, again.duplicates, again.sealed) == (0, 4, None)
    with pytest.raises(PoolError, match="is sealed"):
        twin.add([trajectory("q0", [9])])


def test_the_export_of_a_sealed_pool_leaves_a_pool_with_other_content_open(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client("sealed-part")
    pool.add([trajectory("q0", [i]) for i in range(4)])
    pool.seal()
    export_records(pool, tmp_path)
    twin.add([trajectory("q9", [1])])
    report = import_records(twin, tmp_path)
    assert (report.inserted, report.sealed, twin.stats().sealed) == (4, None, None)
    assert twin.add([trajectory("q9", [2])]).inserted == 1
