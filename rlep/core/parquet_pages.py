"""The memory that decoding a Parquet file takes, from its pages: the sizes in a footer are only what somebody wrote there.

A reader allocates what a page's own header says (``uncompressed_page_size``) and fails where the page holds another amount.
The headers are read here as Thrift's compact protocol has them (github.com/apache/thrift, ``thrift-compact-protocol.md``;
fields: ``parquet.thrift``, ``PageHeader``), without unpacking anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlep.core.errors import DataError

ENCODINGS = ("PLAIN", "", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY",
             "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT")  # fmt: skip
MOST_VALUES = 1 << 27
"""Of a column of a row group; a few bytes of a file can claim billions."""
MOST_PAGE_BYTES = 256 << 20
"""Of one page, unpacked: what reading holds at once of each column, at least."""
_HEADER_BYTES = (1 << 12, 1 << 24)
"""Read of a page's header at first, and where it is longer (pages may carry their smallest and largest text)."""
_DEEPEST = 8
_DICTIONARY_PAGE = 2


class Pages(NamedTuple):
    """A column chunk as its pages say."""

    bytes: int
    """Of all pages, unpacked."""
    values: int
    """Nulls and empty lists among them."""
    encodings: frozenset[str]
    largest: int = 0
    """Bytes of its largest page, unpacked."""


def check_pages(
    path: Path, metadata: Any, *, most: int | None = None, columns: Sequence[str] | None = None
) -> list[list[Pages]]:
    """The pages of each row group's columns (``columns``: their paths; None: all).

    ``metadata``: ``pyarrow.parquet.FileMetaData``. Raises ``DataError`` where a row group unpacks to more than ``most``
    bytes, a page to more than ``MOST_PAGE_BYTES``, a column has more than ``MOST_VALUES`` values, or lies outside the file.
    """
    found = []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(at) for at in range(group.num_columns)]
            wanted = [chunk for chunk in chunks if columns is None or chunk.path_in_schema in columns]
            held: list[Pages] = []
            for chunk in wanted:
                held.append(_pages(path, file, chunk, size))
                if most is not None and (together := sum(pages.bytes for pages in held)) > most:
                    raise DataError(f"{path}: row group {number} unpacks to {together} bytes or more; at most {most}")
            found.append(held)
    return found


def _pages(path: Path, file: Any, chunk: Any, size: int) -> Pages:
    if not chunk.num_values:  # it may have no page at all; Arrow reads none
        return Pages(0, 0, frozenset())
    at, dictionary_at = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary_at and 0 < dictionary_at < at:  # as Arrow finds a column's first page
        at = dictionary_at
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= size:
        raise DataError(f"{path}: column {chunk.path_in_schema!r:.80} lies outside the file")
    unpacked = values = largest = 0
    encodings: set[str] = set()
    while at < end:
        header, length = _header(path, file, at, end)
        kind, page, packed = header.get(1, 0), header.get(2, -1), header.get(3, -1)
        about: dict[int, Any] = next((header[field] for field in (5, 7, 8) if isinstance(header.get(field), dict)), {})
        count, encoding = about.get(1, 0), about.get(4 if 8 in header else 2, 0)
        numbers = (kind, page, packed, count, encoding)
        if any(type(number) is not int or number < 0 for number in numbers) or encoding >= len(ENCODINGS):
            raise DataError(f"{path}: a page of column {chunk.path_in_schema!r:.80} has a damaged header")
        unpacked += page
        largest = max(largest, page)
        values += 0 if kind == _DICTIONARY_PAGE else count
        encodings.add(ENCODINGS[encoding])
        if page > MOST_PAGE_BYTES or values > MOST_VALUES:
            raise DataError(
                f"{path}: column {chunk.path_in_schema!r:.80} of a row group has a page of {page} bytes and {values} values or "
                f"more; at most {MOST_PAGE_BYTES} and {MOST_VALUES}"
            )
        at += length + packed
    return Pages(unpacked, values, frozenset(encodings), largest)


def _header(path: Path, file: Any, at: int, end: int) -> tuple[dict[int, Any], int]:
    """A page header's fields, and its length in bytes."""
    for most in _HEADER_BYTES:
        file.seek(at)
        reader = _Compact(file.read(min(most, end - at)))
        try:
            return reader.struct(0), reader.at
        except IndexError:
            continue
        except ValueError:
            break
    raise DataError(f"{path}: not a readable Parquet file: a page has a damaged header")


class _Compact:
    """Thrift's compact protocol: numbers and structs are kept, everything else is skipped."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.at = raw, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Field number → value."""
        if depth > _DEEPEST:
            raise ValueError("too deep")
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            step, kind = kind >> 4, kind & 15
            number = number + step if step else self._zigzag()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):  # within a list a truth value takes a byte, as an i8 does
            return self._byte()
        if kind in (4, 5, 6):  # a reader takes an i32 from an i32 only
            number = self._zigzag()
            return number if kind == 5 else None
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"type {kind}")

    def _list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(count):
            self._value(head & 15, depth + 1)

    def _byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 128:
            number, shift = number | (byte & 127) << shift, shift + 7
            if shift > 63:
                raise ValueError("too long a number")
        return number | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._raw):
            raise IndexError(count)


def columns_below(metadata: Any, names: Sequence[str]) -> list[str]:
    """The paths of the stored columns that make up these columns, given as ``a`` or ``a.b``."""
    paths = [str(metadata.schema.column(at).path) for at in range(metadata.num_columns)]
    return [path for path in paths if any(path == name or path.startswith(f"{name}.") for name in names)]
