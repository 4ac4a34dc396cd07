"""Shards of Parquet: one record a row, every field a column, readable by anything that reads Parquet.

What is read may come from anywhere: columns of other names, kinds or encodings than those written here are refused, so
that the sizes of a file's pages bound what reading it can take.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlep.core.errors import DataError
from rlep.core.parquet_pages import Pages, check_pages
from rlep.services.pool.files.export_rows import FLAGS, INTEGERS, NUMBERS, OPTIONAL, TEXTS, ExportRow, fields_of

_ROWS = 512
_TOKENS = 1 << 22
"""A row group ends with the row that reaches one of these."""
_LARGEST_GROUP = 96 << 20
"""Bytes, unpacked, that a row group may have. Written here: 512 rows of 64 KiB of details, and 5 Mi tokens with log-probs."""
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings whose unpacked size is what the footer says; dictionaries and deltas can hold much more."""

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in TEXTS),
        *(pa.field(name, pa.int64(), nullable=False) for name in INTEGERS),
        *(pa.field(name, pa.float64(), nullable=False) for name in NUMBERS),
        *(pa.field(name, pa.bool_(), nullable=False) for name in FLAGS),
        *(pa.field(name, pa.string()) for name in OPTIONAL),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("element", pa.float32(), nullable=False))),
    ]
)


_METADATA, _PINNED = SCHEMA.get_field_index("metadata"), SCHEMA.get_field_index("quarantined")
_MAPS = SCHEMA.set(_METADATA, pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False))
"""Of exports of manifest version 1: metadata is a map, which Hugging Face ``datasets`` does not load. Now it is JSON text."""
_WITH_PINS = _MAPS.insert(_PINNED, pa.field("pinned", pa.bool_(), nullable=False))
"""Of exports that rlep 0.1 wrote: the column of pins is not read."""


def write_parquet(path: Path, lines: Iterable[ExportRow]) -> None:
    """Write lines, one row group at a time in memory."""
    # No dictionaries: the reader takes plain pages only, whose size their header tells before they are unpacked.
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False, store_schema=False) as writer:
        group: list[dict[str, Any]] = []
        tokens = 0
        for line in lines:
            group.append(fields_of(line))
            tokens += len(line.trajectory.tokens)
            if len(group) >= _ROWS or tokens >= _TOKENS:
                writer.write_table(_table(group), row_group_size=len(group))
                group, tokens = [], 0
        if group:
            writer.write_table(_table(group), row_group_size=len(group))


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The fields of each row, one row group at a time in memory.

    Raises ``DataError`` for a file that is damaged or not exactly of the kind written here.
    """
    try:
        with pq.ParquetFile(path) as file:
            if not any(file.schema_arrow.equals(known) for known in (SCHEMA, _MAPS, _WITH_PINS)):
                raise DataError(f"{path}: other columns than those of a pool's export: {file.schema_arrow.names}")
            groups = check_pages(path, file.metadata, most=_LARGEST_GROUP)
            for index, columns in enumerate(groups):
                _check_group(path, file.metadata.row_group(index).num_rows, columns)
                yield from _rows(file.read_row_group(index, columns=SCHEMA.names, use_threads=False))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from None


def _check_group(path: Path, rows: int, columns: Sequence[Pages]) -> None:
    values = max(column.values for column in columns)
    if 4 * values > _LARGEST_GROUP or rows > values:
        raise DataError(f"{path}: a row group of {rows} rows and {values} values; at most {_LARGEST_GROUP >> 2}")
    if others := {encoding for column in columns for encoding in column.encodings} - _ENCODINGS:
        raise DataError(f"{path}: encodings that may unpack to any size: {', '.join(sorted(others))}")


def _table(group: Sequence[dict[str, Any]]) -> pa.Table:
    arrays = [
        _lists([fields[field.name] for fields in group], field.type)
        if pa.types.is_list(field.type)
        else pa.array([_plain(fields[field.name]) for fields in group], field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _lists(values: Sequence[Any], kind: Any) -> Any:
    """A list column out of arrays, None where a value is; built from buffers: a list a token would take minutes."""
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    known = [value for value in values if value is not None]
    joined = np.concatenate(known) if known else np.empty(0)
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(joined, kind.value_type), type=kind, mask=missing)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    columns = {field.name: _values(table.column(field.name).combine_chunks(), field.type) for field in table.schema}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _values(column: Any, kind: Any) -> list[Any]:
    """A column's values: lists of numbers as arrays, maps as dicts."""
    if pa.types.is_map(kind):
        return [dict(pairs) for pairs in column.to_pylist()]
    if not pa.types.is_list(kind):
        return list(column.to_pylist())
    flat = column.values.to_numpy(zero_copy_only=False)
    offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [flat[start:end] if known else None for start, end, known in zip(offsets, offsets[1:], valid, strict=False)]
