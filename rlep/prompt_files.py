"""Rows of question and reference out of Parquet and JSONL files, and verl-style Parquet back in.

Two row shapes are known. verl's: ``prompt`` (a list of ``{role, content}``, or that list as JSON, or plain text) with
``reward_model.ground_truth``. Plain: one column of ``QUESTION_COLUMNS`` and one of ``REFERENCE_COLUMNS``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlep.errors import DataError
from rlep.types import Message

QUESTION_COLUMNS = ("problem", "question", "prompt")
"""Names of a plain question column, tried in this order, in any capitalisation."""
REFERENCE_COLUMNS = ("answer", "reference", "ground_truth", "expected_answer", "final_answer")
"""Names of a plain reference column, tried in this order, in any capitalisation."""
MAX_LINE_BYTES = 16 << 20
"""A longer JSONL line is refused before it is parsed."""
BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a dataset, as found: nothing is merged or filtered yet."""

    messages: tuple[Message, ...]
    reference: str
    """The reference answer; empty where the row has none."""
    data_source: str

    @property
    def question(self) -> str:
        """The contents of all messages, joined by blank lines."""
        return "\n\n".join(message.content for message in self.messages)


Adapter = Callable[[Mapping[str, object], str], Row]
"""Turns one raw row into a ``Row``; raises ``ValueError`` saying what is wrong with it."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one ``.parquet`` or ``.jsonl`` file, in file order, a few thousand in memory at a time.

    Raises:
        DataError: the file is missing, of another kind, damaged, or has columns that no adapter knows; or a row is
            malformed (the message has its row or line number).
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return _read_jsonl(path)
    raise DataError(f"{path}: a dataset is a .parquet or .jsonl file, not {path.suffix or 'a file without suffix'}")


def write_verl(path: Path, rows: Sequence[Row], *, split: str, ability: str = "math") -> None:
    """Write rows as one Parquet file of verl's schema, readable by ``read_rows`` and by verl's own loader."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string())])),
        ]
    )
    table = [
        {
            "data_source": row.data_source,
            "prompt": [{"role": message.role, "content": message.content} for message in row.messages],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": row.reference},
            "extra_info": {"index": index, "split": split},
        }
        for index, row in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table, schema=schema), path)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            adapter = _adapter_for(schema.names, path)
            columns = _wanted_columns(schema)
            start = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                for offset, raw in enumerate(batch.to_pylist()):
                    yield _adapt(adapter, raw, f"{path}, row {start + offset + 1}", path.stem)
                start += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, rows {start + 1} to {start + BATCH_ROWS}: text that is not UTF-8: {error}") from error


def _wanted_columns(schema: object) -> list[str]:
    """The columns to decode; of a ``reward_model`` struct only the answer (it may also hold megabytes of candidates)."""
    names = [field.name for field in schema]  # type: ignore[attr-defined]
    known = {"data_source", "prompt", "reward_model", *QUESTION_COLUMNS, *REFERENCE_COLUMNS}
    wanted = [name for name in names if name.casefold() in known]
    if "reward_model" in wanted:
        reward = schema.field("reward_model").type  # type: ignore[attr-defined]
        if getattr(reward, "num_fields", 0) and "ground_truth" in [
            reward.field(i).name for i in range(reward.num_fields)
        ]:
            wanted[wanted.index("reward_model")] = "reward_model.ground_truth"
    return wanted


def _read_jsonl(path: Path) -> Iterator[Row]:
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
            yield _adapt(adapter, raw, where, path.stem)


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


def _adapt(adapter: Adapter, raw: Mapping[str, object], where: str, stem: str) -> Row:
    try:
        row = adapter(raw, stem)
        row.question.encode()
        row.reference.encode()
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


def _verl_row(raw: Mapping[str, object], stem: str) -> Row:
    reward = raw.get("reward_model")
    if isinstance(reward, str):
        reward = json.loads(reward)
    if reward is not None and not isinstance(reward, dict):
        raise ValueError(f"reward_model is {type(reward).__name__}, expected a struct with ground_truth")
    reference = _reference((reward or {}).get("ground_truth"))
    return Row(_messages(raw.get("prompt")), reference, _source(raw, stem))


def _plain_adapter(question: str, reference: str) -> Adapter:
    def adapt(raw: Mapping[str, object], stem: str) -> Row:
        # GSM8K writes the whole solution, then "#### 72".
        answer = _reference(raw.get(reference)).rsplit("####", 1)[-1].strip()
        return Row(_messages(raw.get(question)), answer, _source(raw, stem))

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
