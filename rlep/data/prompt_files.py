"""Rows of question and reference out of Parquet and JSONL files, and verl-style ones back in.

Two row shapes are known. verl's: ``prompt`` (a list of ``{role, content}``, or that list as JSON, or plain text) with
``reward_model.ground_truth``, and maybe ``reward_model.candidates``, responses as texts. Plain: one column of
``QUESTION_COLUMNS`` and one of ``REFERENCE_COLUMNS``, and maybe ``candidates``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rlep.core.errors import DataError
from rlep.core.files import replace_with
from rlep.core.hub_names import HubData, hub_data
from rlep.core.parquet_pages import check_pages, columns_below
from rlep.data.prompt_rows import (
    PLAIN,
    QUESTION_COLUMNS,
    REFERENCE_COLUMNS,
    Adapter,
    PromptRow,
    Wanted,
    adapt,
    adapter_for,
    row_without_columns,
    unknown_columns,
)
from rlep.hub.data_files import data_files

MAX_LINE_BYTES = 16 << 20
"""A longer JSONL line is refused before it is parsed."""
BATCH_ROWS = 4096
CANDIDATE_ROWS = 32
"""Rows in memory where each has responses as texts."""
DELTAS = frozenset({"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"})
"""Encodings of pages that Arrow does not read as dictionaries."""
REPEATING = frozenset({"DELTA_BYTE_ARRAY", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
"""Encodings that state a text once for several values."""
REPEATED_BYTES = 1 << 30
"""Most that the values of a batch may unpack to, of a column that repeats texts and is not read as a dictionary."""
READ_BUFFER = 1 << 20
"""Bytes of a column that are read at once, rather than the whole column of a row group."""


def read_rows(path: Path, wanted: Wanted = PLAIN) -> Iterator[PromptRow]:
    """The rows of one ``.parquet`` or ``.jsonl`` file, or of a data set of the hub, in order, a few thousand in memory at a time.

    Where ``candidates`` or ``columns`` are wanted, which may be megabytes a row, a few rows are in memory at a time.

    Raises:
        DataError: the file is missing, of another kind, damaged, or has columns that no adapter knows; or a row is
            malformed (the message has its row or line number).
    """
    if (data := hub_data(path)) is not None:
        return _read_hub(data, path, replace(wanted, source=data.name.rpartition("/")[2]))
    if not path.is_file():
        raise DataError(f"{path}: no such file" + ("" if path.is_absolute() else f" in {Path.cwd()}"))
    if path.suffix == ".parquet":
        return _read_parquet(path, wanted)
    if path.suffix in (".jsonl", ".ndjson"):
        return _read_jsonl(path, wanted)
    raise DataError(f"{path}: a dataset is a .parquet or .jsonl file, not {path.suffix or 'a file without suffix'}")


def _read_hub(data: HubData, path: Path, wanted: Wanted) -> Iterator[PromptRow]:
    for file in data_files(path):
        try:
            yield from _read_parquet(file, wanted)
        except DataError as error:  # by the name that a user knows
            raise DataError(str(error).replace(str(file), f"{replace(data, commit=None)}, {file.name}")) from None


def write_verl(
    path: Path, rows: Iterable[PromptRow], *, split: str, ability: str = "math", candidates: bool = False
) -> int:
    """Write rows in verl's schema, as JSON lines where the name ends so, else as Parquet; how many they were.

    The file appears as a whole or not at all.
    ``read_rows`` and verl's own loader read them. ``candidates`` adds the rows' responses, as RLEP's authors ship them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = (_verl_fields(row, index, split, ability, candidates) for index, row in enumerate(rows))
    count = 0
    if path.suffix == ".jsonl":
        with replace_with(path) as part, part.open("w", encoding="utf-8") as file:
            for fields in table:
                file.write(json.dumps(fields, ensure_ascii=False) + "\n")
                count += 1
        return count
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    answers = [("candidates", pa.list_(pa.string()))] if candidates else []
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string()), *answers])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string())])),
        ]
    )
    with replace_with(path) as part, pq.ParquetWriter(part, schema) as writer:
        while group := list(islice(table, CANDIDATE_ROWS if candidates else BATCH_ROWS)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _verl_fields(row: PromptRow, index: int, split: str, ability: str, candidates: bool) -> dict[str, object]:
    reward: dict[str, object] = {"style": "rule", "ground_truth": row.reference}
    return {
        "data_source": row.data_source,
        "prompt": [{"role": message.role, "content": message.content} for message in row.messages],
        "ability": ability,
        "reward_model": reward | ({"candidates": list(row.candidates)} if candidates else {}),
        "extra_info": {"index": index, "split": split},
    }


def _read_parquet(path: Path, wanted: Wanted) -> Iterator[PromptRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start, few = 0, wanted.candidates or wanted.columns
    size = CANDIDATE_ROWS if few else BATCH_ROWS
    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        adapter = adapter_for(schema.names, wanted)
        if adapter is None:
            raise unknown_columns(schema.names, path, wanted)
        columns = _wanted_columns(schema, wanted)
        stored = columns_below(metadata, columns)
        # As dictionaries, so that a text that is repeated is not unpacked over and over before its size is known.
        dictionaries, most_rows = _read_as(path, metadata, stored)
        size = min(size, most_rows)
        with pq.ParquetFile(path, read_dictionary=dictionaries, buffer_size=READ_BUFFER if few else 0) as file:
            for batch in file.iter_batches(batch_size=size, columns=columns):
                for part in _parts(batch, path, start):
                    spelled = _spelling(pa.struct(part.schema))
                    for offset, raw in enumerate(part.to_pylist()):
                        row = spelled(raw) if spelled else raw
                        yield adapt(adapter, row, path, f"row {start + offset + 1}", wanted)
                    start += part.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, rows {start + 1} to {start + size}: text that is not UTF-8: {error}") from error


def _read_as(path: Path, metadata: Any, stored: Sequence[str]) -> tuple[list[str], int]:
    """Columns to read as dictionaries, and how many rows at once. Raises ``DataError`` as ``check_pages`` does.

    Arrow makes no dictionary of pages in a delta encoding. Where such a column repeats texts, by a dictionary's pages or as
    beginnings (``DELTA_BYTE_ARRAY``), each value may be as long as its largest page, and few rows are read at once.
    """
    plain: set[str] = set()
    most_rows = BATCH_ROWS
    for number, held in enumerate(check_pages(path, metadata, columns=stored)):
        group = metadata.row_group(number)
        chunks = [chunk for at in range(group.num_columns) if (chunk := group.column(at)).path_in_schema in stored]
        for chunk, pages in zip(chunks, held, strict=True):
            if not pages.encodings & DELTAS:
                continue
            plain.add(chunk.path_in_schema)
            if chunk.physical_type != "BYTE_ARRAY" or not pages.encodings & REPEATING:
                continue
            most_rows = min(most_rows, max(1, REPEATED_BYTES // pages.largest))
            longest_row = max(1, pages.values - group.num_rows + 1)
            if longest_row > 1 and longest_row * pages.largest > REPEATED_BYTES:
                raise DataError(
                    f"{path}: column {chunk.path_in_schema} is a list of texts in {', '.join(sorted(pages.encodings & DELTAS))}, "
                    f"of which a row may unpack to more than {REPEATED_BYTES} bytes: write it in smaller row groups, or with "
                    "plain or dictionary encoding"
                )
    return [name for name in stored if name not in plain], most_rows


def _spelling(kind: Any) -> Callable[[Any], Any] | None:
    """Function that gives numbers of 16 and 32 bits their own shortest spelling, 0.1 for 0.10000000149; None without any."""
    import pyarrow as pa

    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        narrow = kind.to_pandas_dtype()
        return lambda value: None if value is None else float(str(narrow(value)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _spelling(kind.value_type)
        return inner and (lambda value: None if value is None else [inner(part) for part in value])
    if pa.types.is_struct(kind):
        parts = {field.name: spelled for field in kind if (spelled := _spelling(field.type)) is not None}

        def spell_parts(value: dict[str, Any] | None) -> dict[str, Any] | None:
            return value and {name: parts[name](part) if name in parts else part for name, part in value.items()}

        return spell_parts if parts else None
    return None


def _wanted_columns(schema: Any, wanted: Wanted) -> list[str]:
    """The columns to decode; of a ``reward_model`` struct only what is wanted (candidates may be megabytes)."""
    known = {"data_source", "prompt", "reward_model", *QUESTION_COLUMNS, *REFERENCE_COLUMNS}
    own = {wanted.question, wanted.answer}
    names = []
    for field in schema:
        if field.name == "candidates":
            names += [field.name] if wanted.candidates else []
        elif field.name in own or field.name.casefold() in known or (wanted.columns and not _has_bytes(field.type)):
            names.append(field.name)
    if "reward_model" in names:
        reward = schema.field("reward_model").type
        parts = [reward.field(i).name for i in range(getattr(reward, "num_fields", 0))]
        if "ground_truth" in parts:
            at, kept = names.index("reward_model"), {"ground_truth"} | ({*parts} if wanted.columns else set())
            kept = kept | {"candidates"} if wanted.candidates else kept - {"candidates"}
            names[at : at + 1] = [f"reward_model.{part}" for part in parts if part in kept]
    return names


def _has_bytes(kind: Any) -> bool:
    """Tell whether a column holds bytes, as of images: JSON has none."""
    import pyarrow as pa

    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(_has_bytes(kind.field(part).type) for part in range(kind.num_fields))


def _parts(batch: Any, path: Path, start: int) -> Iterator[Any]:
    """The rows of a batch, as many at once as have texts of ``MAX_LINE_BYTES`` together.

    Raises ``DataError`` where one row has more: it would take more memory than a line of JSON may.
    """
    size = _text_bytes(batch.to_struct_array())
    if size <= MAX_LINE_BYTES:
        yield batch
        return
    if batch.num_rows == 1:
        raise DataError(f"{path}, row {start + 1}: {size} bytes of text; at most {MAX_LINE_BYTES} a row")
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half), path, start)
    yield from _parts(batch.slice(half), path, start + half)


def _text_bytes(array: Any) -> int:
    """Bytes of all texts in an array, each counted as often as it stands there, and of what else it holds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(_text_bytes, array.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _text_bytes(array.flatten())
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_text_bytes(part.slice(first, last - first)) for part in (array.keys, array.items))
    return int(array.nbytes)


def _read_jsonl(path: Path, wanted: Wanted) -> Iterator[PromptRow]:
    adapter: Adapter | None = None
    columns: list[str] | None = None  # the first row's, while no adapter fits
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            place = f"line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path}, {place}: longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            raw = _parse_line(line, f"{path}, {place}")
            adapter = adapter or adapter_for(list(raw), wanted)
            if adapter is None:
                columns = columns or list(raw)
                yield row_without_columns(list(raw), place, wanted)
            else:
                yield adapt(adapter, raw, path, place, wanted)
    if adapter is None and columns is not None:
        raise unknown_columns(columns, path, wanted)


def _parse_line(line: bytes, where: str) -> dict[str, object]:
    try:
        raw = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: text that is not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(raw).__name__}")
    return raw
