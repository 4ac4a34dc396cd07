"""Rows of question and reference out of Parquet and JSONL files, and verl-style ones back in.

Two row shapes are known. verl's: ``prompt`` (a list of ``{role, content}``, or that list as JSON, or plain text) with
``reward_model.ground_truth``, and maybe ``reward_model.candidates``, responses as texts. Plain: one column of
``QUESTION_COLUMNS`` and one of ``REFERENCE_COLUMNS``, and maybe ``candidates``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rlep.core.errors import DataError
from rlep.core.types import Message

QUESTION_COLUMNS = ("problem", "question", "prompt")
"""Names of a plain question column, tried in this order, in any capitalisation."""
REFERENCE_COLUMNS = ("answer", "reference", "ground_truth", "expected_answer", "final_answer")
"""Names of a plain reference column, tried in this order, in any capitalisation."""
MAX_LINE_BYTES = 16 << 20
"""A longer JSONL line is refused before it is parsed."""
BATCH_ROWS = 4096
CANDIDATE_ROWS = 32
"""Rows in memory where each has responses as texts."""
READ_BUFFER = 1 << 20
"""Bytes of a column that are read at once, rather than the whole column of a row group."""
MAX_VALUES = 1 << 27
"""Values that a row group may have where responses are read; some bytes of a file can claim billions."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of a dataset, as found: nothing is merged or filtered yet."""

    messages: tuple[Message, ...]
    reference: str
    """The reference answer; empty where the row has none."""
    data_source: str
    candidates: tuple[str, ...] = ()
    """Answers as texts, where the file has them and they were asked for."""

    @property
    def question(self) -> str:
        """The contents of all messages, joined by blank lines."""
        return "\n\n".join(message.content for message in self.messages)


Adapter = Callable[[Mapping[str, object], str], PromptRow]
"""Turns one raw row into a ``PromptRow``; raises ``ValueError`` saying what is wrong with it."""


def read_rows(path: Path, *, candidates: bool = False) -> Iterator[PromptRow]:
    """The rows of one ``.parquet`` or ``.jsonl`` file, in file order, a few thousand in memory at a time.

    With ``candidates`` their responses as well, which may be megabytes a row: a few rows are then in memory at a time.

    Raises:
        DataError: the file is missing, of another kind, damaged, or has columns that no adapter knows; or a row is
            malformed (the message has its row or line number).
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".parquet":
        return _read_parquet(path, candidates=candidates)
    if path.suffix in (".jsonl", ".ndjson"):
        return _read_jsonl(path, candidates=candidates)
    raise DataError(f"{path}: a dataset is a .parquet or .jsonl file, not {path.suffix or 'a file without suffix'}")


def write_verl(
    path: Path, rows: Iterable[PromptRow], *, split: str, ability: str = "math", candidates: bool = False
) -> int:
    """Write rows in verl's schema, as JSON lines where the name ends so, else as Parquet; how many they were.

    ``read_rows`` and verl's own loader read them. ``candidates`` adds the rows' responses, as RLEP's authors ship them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = (_verl_fields(row, index, split, ability, candidates) for index, row in enumerate(rows))
    count = 0
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
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
    with pq.ParquetWriter(path, schema) as writer:
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


def _read_parquet(path: Path, *, candidates: bool) -> Iterator[PromptRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start = 0
    try:
        texts = _candidate_columns(path) if candidates else []
        # As dictionaries, so that a text that is repeated is not unpacked over and over before its size is known.
        with pq.ParquetFile(path, read_dictionary=texts, buffer_size=READ_BUFFER if candidates else 0) as file:
            schema = file.schema_arrow
            adapter = _adapter_for(schema.names, path)
            columns = _wanted_columns(schema, candidates=candidates)
            for batch in file.iter_batches(batch_size=CANDIDATE_ROWS if candidates else BATCH_ROWS, columns=columns):
                for column in texts:
                    _check_size(batch, column, f"{path}, rows {start + 1} to {start + batch.num_rows}")
                for offset, raw in enumerate(batch.to_pylist()):
                    where = f"{path}, row {start + offset + 1}"
                    yield _adapt(adapter, raw, where, path.stem, candidates=candidates)
                start += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, rows {start + 1} to {start + BATCH_ROWS}: text that is not UTF-8: {error}") from error


def _wanted_columns(schema: object, *, candidates: bool) -> list[str]:
    """The columns to decode; of a ``reward_model`` struct only what is wanted (candidates may be megabytes)."""
    names = [field.name for field in schema]  # type: ignore[attr-defined]
    known = {"data_source", "prompt", "reward_model", *QUESTION_COLUMNS, *REFERENCE_COLUMNS}
    wanted = [name for name in names if name.casefold() in known or (candidates and name == "candidates")]
    if "reward_model" in wanted:
        reward = schema.field("reward_model").type  # type: ignore[attr-defined]
        parts = [reward.field(i).name for i in range(getattr(reward, "num_fields", 0))]
        if "ground_truth" in parts:
            wanted[wanted.index("reward_model")] = "reward_model.ground_truth"
            if candidates and "candidates" in parts:
                wanted.append("reward_model.candidates")
    return wanted


def _candidate_columns(path: Path) -> list[str]:
    """The paths of the columns of responses as texts."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            columns = [file.metadata.row_group(group).column(index) for index in range(file.metadata.num_columns)]
            if any(column.num_values > MAX_VALUES for column in columns):
                raise DataError(f"{path}: a row group of more than {MAX_VALUES} values")
        paths = [file.schema.column(index).path for index in range(len(file.schema))]
    return [name for name in paths if name.startswith(("reward_model.candidates.", "candidates."))]


def _check_size(batch: Any, column: str, where: str) -> None:
    """Refuse rows whose responses would take more memory than as many lines of JSON may."""
    import pyarrow.compute as pc

    top = column.partition(".")[0]
    lists = batch.column(top) if top == "candidates" else batch.column(top).field("candidates")
    values = lists.flatten()
    size = pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0
    if size > batch.num_rows * MAX_LINE_BYTES:
        raise DataError(f"{where}: {size} bytes of candidates; at most {MAX_LINE_BYTES} a row")


def _read_jsonl(path: Path, *, candidates: bool) -> Iterator[PromptRow]:
    adapter: Adapter | None = None
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            where = f"{path}, line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{where}: longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            raw = _parse_line(line, where)
            adapter = adapter or _adapter_for(list(raw), path)
            yield _adapt(adapter, raw, where, path.stem, candidates=candidates)


def _parse_line(line: bytes, where: str) -> dict[str, object]:
    try:
        raw = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: text that is not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _adapt(adapter: Adapter, raw: Mapping[str, object], where: str, stem: str, *, candidates: bool) -> PromptRow:
    try:
        row = adapter(raw, stem)
        row.question.encode()
        row.reference.encode()
        if candidates:
            row = replace(row, candidates=_candidates(raw))
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: text that has no UTF-8 form: {error}") from error
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    return row


def _adapter_for(columns: Sequence[str], path: Path) -> Adapter:
    if "prompt" in columns and "reward_model" in columns:
        return _verl_row
    by_name = {name.casefold(): name for name in reversed(columns)}
    question = next((by_name[name] for name in QUESTION_COLUMNS if name in by_name), None)
    reference = next((by_name[name] for name in REFERENCE_COLUMNS if name in by_name), None)
    if question is None or reference is None:
        raise DataError(
            f"{path}: no known question and reference columns. Found: {', '.join(columns) or 'none'}. Known: prompt with "
            f"reward_model.ground_truth (verl); or {'/'.join(QUESTION_COLUMNS)} with {'/'.join(REFERENCE_COLUMNS)}"
        )
    return _plain_adapter(question, reference)


def _verl_row(raw: Mapping[str, object], stem: str) -> PromptRow:
    reward = raw.get("reward_model")
    if isinstance(reward, str):
        reward = json.loads(reward)
    if reward is not None and not isinstance(reward, dict):
        raise ValueError(f"reward_model is {type(reward).__name__}, expected a struct with ground_truth")
    reference = _reference((reward or {}).get("ground_truth"))
    return PromptRow(_messages(raw.get("prompt")), reference, _source(raw, stem))


def _candidates(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Answers as texts: ``reward_model.candidates``, else ``candidates``, else none."""
    reward = raw.get("reward_model")
    if isinstance(reward, str):
        reward = json.loads(reward)
    found = reward.get("candidates") if isinstance(reward, dict) else None
    found = raw.get("candidates") if found is None else found
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError("candidates are no list of texts")
    for text in found:
        text.encode()
    return tuple(found)


def _plain_adapter(question: str, reference: str) -> Adapter:
    def adapt(raw: Mapping[str, object], stem: str) -> PromptRow:
        # GSM8K writes the whole solution, then "#### 72".
        answer = _reference(raw.get(reference)).rsplit("####", 1)[-1].strip()
        return PromptRow(_messages(raw.get(question)), answer, _source(raw, stem))

    return adapt


def _source(raw: Mapping[str, object], stem: str) -> str:
    source = raw.get("data_source")
    return source if isinstance(source, str) and source else stem


def _messages(prompt: object) -> tuple[Message, ...]:
    """Chat messages out of a list of ``{role, content}``, that list as JSON, or plain text (one user message)."""
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        parsed = _parsed_messages(prompt)
        return (Message("user", prompt),) if parsed is None else parsed
    if not isinstance(prompt, list):
        raise ValueError(f"the question is {type(prompt).__name__}, expected text or a list of messages")
    return tuple(_message(item) for item in prompt)


def _parsed_messages(text: str) -> tuple[Message, ...] | None:
    """The messages in a JSON text, or None where the text is an ordinary question such as ``[x] + 1 = ?``."""
    if not text.lstrip().startswith("["):
        return None
    try:
        items = json.loads(text)
        return tuple(_message(item) for item in items) if items else None
    except (ValueError, RecursionError):
        return None


def _message(item: object) -> Message:
    if isinstance(item, dict):
        role, content = item.get("role"), item.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return Message(role, content)
    raise ValueError("a message needs a text role and a text content")


def _reference(value: object) -> str:
    """The reference as text: numbers are written out, a list of one is unwrapped, None and NaN are empty."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"the reference is {type(value).__name__}, expected one text or number")
