"""The sizes of a Parquet file are those of its pages, whatever its footer says."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.core import parquet_pages
from rlep.core.errors import DataError
from rlep.core.parquet_pages import check_pages, columns_below
from rlep.data.prompt_files import read_rows
from rlep.services.pool.files.parquet_shards import SCHEMA, read_parquet
from rlep.view.run_files import RunPlace
from rlep.view.samples import read_samples

MIB = 1 << 20
NESTED = pa.table(
    {"a": ["x" * n for n in range(300)], "b": [[n] * n for n in range(300)], "c": [{"d": n} for n in range(300)]}
)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_hold_what_an_honest_footer_says(
    tmp_path: Path, version: str, compression: str, dictionary: bool
) -> None:
    path = tmp_path / "honest.parquet"
    pq.write_table(
        NESTED, path, compression=compression, use_dictionary=dictionary, data_page_version=version, row_group_size=100,
        data_page_size=500, write_batch_size=10, write_page_checksum=True,
        write_statistics=False,
    )  # fmt: skip
    metadata = pq.read_metadata(path)
    groups = check_pages(path, metadata, most=MIB)
    assert [len(group) for group in groups] == [3, 3, 3]
    for number, group in enumerate(groups):
        for at, pages in enumerate(group):
            column = metadata.row_group(number).column(at)
            assert pages.values == column.num_values
            headers = column.total_uncompressed_size - pages.bytes  # the footer counts the pages' headers, too
            assert 0 < headers < 100 * (2 + column.num_values // 10)
            assert pages.encodings <= set(column.encodings)


def test_columns_are_found_by_the_names_of_what_they_are_in(tmp_path: Path) -> None:
    pq.write_table(NESTED, tmp_path / "n.parquet")
    metadata = pq.read_metadata(tmp_path / "n.parquet")
    assert columns_below(metadata, ["b", "c.d"]) == ["b.list.element", "c.d"]
    assert len(check_pages(tmp_path / "n.parquet", metadata, columns=["c.d"])[0]) == 1


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_row_group_without_rows_has_no_bytes(tmp_path: Path, dictionary: bool) -> None:
    path = tmp_path / "gap.parquet"
    rows = pa.table({"problem": ["1?", "2?"], "answer": ["1", "2"]})
    with pq.ParquetWriter(path, rows.schema, use_dictionary=dictionary) as writer:
        for part in (rows, rows.slice(0, 0), rows):
            writer.write_table(part)
    groups = check_pages(path, pq.read_metadata(path), most=MIB)
    assert [[pages.values for pages in group] for group in groups] == [[2, 2], [0, 0], [2, 2]]
    assert [pages.bytes for pages in groups[1]] == [0, 0]
    assert [row.reference for row in read_rows(path)] == ["1", "2", "1", "2"]
    pq.write_table(rows.slice(0, 0), path)
    assert list(read_rows(path)) == []


def lying(path: Path, table: pa.Table) -> None:
    """Write a table whose footer says that its columns unpack to 100 bytes."""
    pq.write_table(table, path, compression="zstd", use_dictionary=False, store_schema=False)
    raw, metadata = path.read_bytes(), pq.read_metadata(path)
    group = metadata.row_group(0)
    (length,) = struct.unpack("<I", raw[-8:-4])
    footer = raw[-8 - length : -8]
    for at in range(group.num_columns):
        size, less = varint(2 * group.column(at).total_uncompressed_size), varint(200)
        footer = footer.replace(size, less + b"" if len(size) == len(less) else padded(less, len(size)))
    path.write_bytes(raw[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def padded(number: bytes, length: int) -> bytes:
    """The same number in more bytes."""
    return number[:-1] + bytes([number[-1] | 128]) + b"\x80" * (length - len(number) - 1) + b"\0"


def shard(path: Path) -> None:
    fields = {field.name: field.type for field in SCHEMA}
    row: dict[str, object] = {name: "" if kind == pa.string() else 0 for name, kind in fields.items()}
    row |= {"metadata": "{}", "tokens": [], "logprobs": None}
    row |= {name: False for name, kind in fields.items() if kind == pa.bool_()}
    one = pa.Table.from_pylist([row], schema=SCHEMA)
    kind = fields["tokens"]
    tokens = pa.ListArray.from_arrays(pa.array([0, 40 * MIB], pa.int32()), np.full(40 * MIB, 7, np.int32), type=kind)
    lying(path, one.set_column(SCHEMA.get_field_index("tokens"), SCHEMA.field("tokens"), tokens))


def test_a_small_shard_whose_footer_lies_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    shard(path)
    assert path.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"row group 0 unpacks to 16[0-9]{7} bytes or more; at most 100663296"):
        list(read_parquet(path))
    assert pa.total_allocated_bytes() - before < MIB


def samples(path: Path) -> object:
    (path.parent / "samples").mkdir()
    path.rename(path.parent / "samples" / "step-000001.parquet")
    return read_samples(RunPlace("a", path.parent), 1)


@pytest.mark.parametrize("read", [lambda path: list(read_rows(path)), samples], ids=["data", "study"])
def test_a_page_that_unpacks_to_more_than_its_bound_is_refused_unread(
    tmp_path: Path, read: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pages, "MOST_PAGE_BYTES", MIB)
    path = tmp_path / "data.parquet"
    columns = ("problem", "answer", "prompt_id", "status", "extracted")
    lying(path, pa.table({name: ["x" * (2 * MIB)] for name in columns}))
    with pytest.raises(DataError, match="has a page of 2097162 bytes and 1 values or more; at most 1048576"):
        read(path)


def test_a_text_that_many_rows_repeat_is_made_a_few_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(["x" * (9 * MIB)]))
    table = pa.table({"problem": texts, "answer": ["1"] * 4000})
    pq.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=16 * MIB)
    assert path.stat().st_size < 100_000
    before = pa.default_memory_pool().max_memory()
    rows = read_rows(path)
    assert [len(next(rows).messages[0].content) for _ in range(3)] == [9 * MIB] * 3
    assert max(pa.default_memory_pool().max_memory(), before) - before < 400 * MIB  # all of them: 36,000
    long = tmp_path / "long.parquet"
    pq.write_table(pa.table({"problem": ["x" * (17 * MIB)], "answer": ["1"]}), long)
    with pytest.raises(DataError, match="row 1: 17825793 bytes of text; at most 16777216 a row"):
        list(read_rows(long))


@pytest.mark.parametrize("at", range(4, 40))
def test_a_flipped_byte_in_a_pages_header_is_a_data_error_or_changes_nothing(tmp_path: Path, at: int) -> None:
    path = tmp_path / "flipped.parquet"
    pq.write_table(pa.table({"a": ["x" * 100]}), path)
    raw, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    for bits in (1, 0x0F, 0x80, 0xFF):
        raw[at] ^= bits
        path.write_bytes(raw)
        try:
            (pages,) = check_pages(path, metadata)[0]
        except DataError:
            pass
        else:
            assert pages.bytes <= 2 * parquet_pages.MOST_PAGE_BYTES
        raw[at] ^= bits
