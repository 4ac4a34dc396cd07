"""The Parquet files of a run as the console reads them: rows of steps, texts of groups, samples of evaluations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlep.core.errors import DataError
from rlep.core.parquet_pages import Pages, check_pages, columns_below
from rlep.view.run_files import RunPlace

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, DataType, Schema

MOST_ROWS = 200_000
MOST_ROW_GROUP_BYTES = 256 * 2**20
"""Also of all rows that are shown at once."""
MOST_STEPS = 200
"""Newest steps in which a prompt is looked for."""
_STEP = re.compile(r"step-(\d{6,9})\.parquet")
ROW_COLUMNS = (
    *("group", "member", "prompt_id", "content_id", "replayed", "status", "extracted", "finish_reason", "tokens"),
    *("reward", "advantage", "trained", "update", "policy_version", "oldest_version", "policy"),
    *("logprob", "sampler_logprob", "gap_max", "verifier_path", "verifier_s"),
    *("score", "parts", "reason"),
)
OPTIONAL = ("score", "parts", "reason", "prompt", "sampled", "ends")
"""Columns that files of older versions, of verifiers without scores, or without episodes lack."""
KINDS: Mapping[str, str] = (
    dict.fromkeys(("group", "member", "tokens", "update", "policy_version", "oldest_version", "sample"), "integers")
    | dict.fromkeys(("reward", "advantage", "logprob", "sampler_logprob", "gap_max", "verifier_s", "score"), "numbers")
    | dict.fromkeys(("replayed", "trained"), "booleans")
    | {"token_ids": "lists of integers", "logprobs": "lists of numbers", "sampled": "lists of booleans"}
    | {"ends": "lists of integers"}
)
"""Kind of values of a column; those that are not named hold strings."""
WHOLE = ("group", "member", "prompt_id", "tokens", "reward", "advantage")
"""Columns without a null."""
TEXT_COLUMNS = (
    *("group", "member", "question", "reference", "prompt", "text", "token_ids", "logprobs"),
    *("sampled", "ends"),
)
SAMPLE_COLUMNS = (
    "prompt_id",
    "data_source",
    "question",
    "reference",
    "sample",
    "response",
    "extracted",
    "status",
    "tokens",
    *("score", "parts", "reason", "ends"),
)

Row = Mapping[str, Any]
"""Column → value, of the columns that were asked for."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The trajectories of one prompt in one step, fresh ones first."""

    number: int
    rows: tuple[Row, ...]

    @property
    def fresh(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row["replayed"])

    @property
    def replays(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row["replayed"])

    @property
    def correct(self) -> int:
        """Correct fresh responses."""
        return sum(row["status"] == "correct" for row in self.fresh)

    @property
    def rescued(self) -> bool:
        """A replay is correct, and no fresh response."""
        return not self.correct and any(row["status"] == "correct" for row in self.replays)

    @property
    def all_wrong(self) -> bool:
        return not any(row["status"] == "correct" for row in self.rows)

    @property
    def tokens(self) -> int:
        """Of the longest response."""
        return int(max(row["tokens"] for row in self.rows))

    @property
    def shortest(self) -> int:
        return int(min(row["tokens"] for row in self.rows))

    @property
    def gap(self) -> float:
        """The largest difference between learner and sampler, nats."""
        return max((float(row["gap_max"]) for row in self.rows if row["gap_max"] is not None), default=0.0)

    @property
    def mass(self) -> float:
        """Sum of |advantage|: 0 where the group taught nothing."""
        return sum(abs(float(row["advantage"])) for row in self.rows if row["trained"])


def steps_with(run: RunPlace, folder: str) -> list[int]:
    """Steps of which ``rollouts`` or ``samples`` has a file, newest first."""
    try:
        names = [path.name for path in run.file(folder).iterdir()]
    except (OSError, DataError):
        return []
    return sorted((int(found[1]) for name in names if (found := _STEP.fullmatch(name))), reverse=True)


def read_groups(run: RunPlace, step: int) -> list[GroupView]:
    """The groups of a step in their order. Raises ``DataError``."""
    rows = read_rows(run, ("rollouts", f"step-{step:06d}.parquet"), ROW_COLUMNS)
    by_group: dict[int, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    return [GroupView(number, tuple(members)) for number, members in sorted(by_group.items())]


def read_texts(run: RunPlace, step: int, group: int) -> list[Row]:
    """Question, text and log-probs of a group's members; empty where it was not among the chosen. Raises ``DataError``."""
    name = f"step-{step:06d}.tokens.parquet"
    return read_rows(run, ("rollouts", name), TEXT_COLUMNS, only=("group", group))


def read_questions(run: RunPlace, step: int) -> dict[int, str]:
    """Group → question of the groups whose texts were written; none where their file was removed. Raises ``DataError``."""
    parts = ("rollouts", f"step-{step:06d}.tokens.parquet")
    if not run.file(*parts).exists():
        return {}
    return {row["group"]: str(row["question"]) for row in read_rows(run, parts, ("group", "question"), ("member", 0))}


def groups_with(run: RunPlace, step: int, words: str) -> set[int]:
    """Groups of a step that have ``words`` in a written question or response, in any case. Raises ``DataError``."""
    rows = read_rows(run, ("rollouts", f"step-{step:06d}.tokens.parquet"), ("group", "question", "text"))
    return {row["group"] for row in rows if words.lower() in f"{row['question']}\n{row['text']}".lower()}


def read_known(run: RunPlace, most: int = 5) -> tuple[dict[str, str], dict[str, str]]:
    """Prompt id → question and content id → response, of the texts that the newest ``most`` steps with files have."""
    questions, responses, found = dict[str, str](), dict[str, str](), 0
    for step in steps_with(run, "rollouts"):
        if found == most:
            break
        name = f"step-{step:06d}"
        try:
            texts = read_rows(run, ("rollouts", f"{name}.tokens.parquet"), ("group", "member", "question", "text"))
            rows = read_rows(run, ("rollouts", f"{name}.parquet"), ("group", "member", "prompt_id", "content_id"))
        except DataError:  # hashes are shown then; the page of the step says what is wrong
            continue
        found += 1
        ids = {(row["group"], row["member"]): (row["prompt_id"], row["content_id"]) for row in rows}
        for row in texts:
            prompt_id, content_id = ids.get((row["group"], row["member"]), (None, None))
            if prompt_id is not None:
                questions.setdefault(prompt_id, str(row["question"]))
                responses.setdefault(content_id, str(row["text"]))
    return questions, responses


def read_written(
    run: RunPlace, steps: Sequence[int], prompt: str, most: int
) -> tuple[list[tuple[int, Row]], list[str]]:
    """(step, question and first fresh response) of the first ``most`` of these steps that have them, and notes."""
    found, notes = list[tuple[int, Row]](), list[str]()
    names = ((step, ("rollouts", f"step-{step:06d}.tokens.parquet")) for step in steps)
    files = ((step, name) for step, name in names if run.directory.joinpath(*name).exists())  # the oldest are removed
    columns = ("member", "question", "prompt", "text", "ends")
    for step, rows in _readable(run, files, columns, ("prompt_id", prompt), notes):
        found += [(step, row) for row in rows[:1]]
        if len(found) == most:
            break
    return found, notes


def read_sample_rows(run: RunPlace, step: int, prompt: str | None = None, *, texts: bool = False) -> list[Row]:
    """The samples of an evaluation; ``response`` and its ``ends`` only with ``texts``. Raises ``DataError``."""
    columns = [name for name in SAMPLE_COLUMNS if texts or name not in ("response", "ends")]
    only = None if prompt is None else ("prompt_id", prompt)
    return read_rows(run, ("samples", f"step-{step:06d}.parquet"), columns, only=only)


def read_prompt(run: RunPlace, prompt: str) -> tuple[list[tuple[int, GroupView]], list[str]]:
    """(step, group) of every one of the newest steps that had the prompt, newest first, and notes on damaged files."""
    notes = list[str]()
    files = _files_of("rollouts", steps_with(run, "rollouts")[:MOST_STEPS])
    read = _readable(run, files, ROW_COLUMNS, ("prompt_id", prompt), notes)
    return [(step, GroupView(rows[0]["group"], tuple(rows))) for step, rows in read if rows], notes


def read_correct(run: RunPlace, prompt: str) -> tuple[list[tuple[int, int, int]], str | None, list[str]]:
    """(step, correct, samples) of the newest evaluations that had the prompt, newest first, its text, and notes."""
    question: str | None = None
    found, notes = [], list[str]()
    files = _files_of("samples", steps_with(run, "samples")[:MOST_STEPS])
    for step, rows in _readable(run, files, ("status", "question"), ("prompt_id", prompt), notes):
        if rows:
            question = question or rows[0]["question"]
            found.append((step, sum(row["status"] == "correct" for row in rows), len(rows)))
    return found, question, notes


def read_drawn(run: RunPlace, steps: Sequence[int]) -> tuple[list[tuple[int, str, str]], list[str]]:
    """(step, prompt id, content id) of every replay in these steps, and notes on damaged files."""
    notes = list[str]()
    read = _readable(run, _files_of("rollouts", steps), ("prompt_id", "content_id"), ("replayed", True), notes)
    return [(step, str(row["prompt_id"]), str(row["content_id"])) for step, rows in read for row in rows], notes


def _files_of(folder: str, steps: Sequence[int]) -> list[tuple[int, tuple[str, str]]]:
    return [(step, (folder, f"step-{step:06d}.parquet")) for step in steps]


def _readable(
    run: RunPlace,
    files: Iterable[tuple[int, tuple[str, str]]],
    columns: Sequence[str],
    only: tuple[str, int | str | bool],
    notes: list[str],
) -> Iterator[tuple[int, list[Row]]]:
    """(step, rows) of every (step, file) that can be read; what is wrong with the others is added to ``notes``."""
    for step, parts in files:
        try:
            rows = read_rows(run, parts, columns, only=only)
        except DataError as error:
            notes.append(str(error))
            continue
        yield step, rows


def read_rows(
    run: RunPlace,
    parts: tuple[str, str],
    columns: Sequence[str],
    only: tuple[str, int | str | bool] | None = None,
    most: int = MOST_ROWS,
) -> list[Row]:
    """Rows of a Parquet file, where ``only`` = (column, value) holds. Raises ``DataError`` saying what is wrong with it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    name, path = "/".join(parts), run.file(*parts)
    rows: list[Row] = []
    together = 0
    asked = list(dict.fromkeys([*columns, *(only[:1] if only else ())]))
    try:
        with path.open("rb") as source:
            metadata = pq.read_metadata(source)
            plain = {metadata.schema.column(at).path for at in range(metadata.num_columns)}
            # texts stay in their dictionaries until their sizes are known: every row could have the largest
            texts = [column for column in asked if column in plain and column not in KINDS]
            file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True, read_dictionary=texts)
            lacking = _lacking(name, file.schema_arrow, asked)
            columns = [column for column in columns if column not in lacking]
            if file.metadata.num_rows > most:
                raise DataError(f"{name} has {file.metadata.num_rows} rows; at most {most} are read")
            stored = columns_below(metadata, asked)
            for number, pages in enumerate(_pages(name, path, metadata, stored)):
                _bounded(name, max(4 * column.values for column in pages))
                held = None
                if only is not None:
                    column, value = only
                    key = file.read_row_group(number, columns=[column])[column]
                    held = pc.equal(key, pa.scalar(value, getattr(key.type, "value_type", key.type)))
                    if not pc.any(held).as_py():
                        continue
                table = file.read_row_group(number, columns=list(columns))
                table = table if held is None else table.filter(held)
                size = sum(map(_texts_in, table.columns))
                _bounded(name, size)
                together += size + sum(map(_lists_in, table.columns))
                _bounded(name, together, "its rows together have")
                rows += [dict.fromkeys(lacking) | row for row in table.to_pylist()]
    except FileNotFoundError:
        raise DataError(f"{name} is missing") from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{name} is damaged: {error}") from None
    if torn := [column for column in columns if column in WHOLE and any(row[column] is None for row in rows)]:
        raise DataError(f"{name} has rows without {torn[0]}")
    return rows


def _lacking(name: str, schema: Schema, asked: Sequence[str]) -> list[str]:
    """Columns that a file lacks, and may; DataError for one that it must have, or that holds something else."""
    lacking = [column for column in asked if column not in schema.names]
    if missing := [column for column in lacking if column not in OPTIONAL]:
        raise DataError(f"{name} has no column {', '.join(missing)}")
    for column in asked:
        if column not in lacking and not _holds(schema.field(column).type, KINDS.get(column)):
            raise DataError(f"{name}: {column} does not hold {KINDS.get(column, 'strings')}")
    return lacking


def _pages(name: str, path: Path, metadata: Any, stored: Sequence[str]) -> list[list[Pages]]:
    try:
        return check_pages(path, metadata, most=MOST_ROW_GROUP_BYTES, columns=stored)
    except DataError as error:
        raise DataError(f"{name} is damaged: {str(error).removeprefix(f'{path}: ')}") from None


def _bounded(name: str, size: int, words: str = "a row group has") -> None:
    if size > MOST_ROW_GROUP_BYTES:
        raise DataError(f"{name}: {words} {size} bytes; at most {MOST_ROW_GROUP_BYTES}")


def _texts_in(column: ChunkedArray) -> int:
    """Bytes of a column's texts when each row has its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return 0
    sizes = (pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() for chunk in column.chunks)
    return sum(size or 0 for size in sizes)


def _lists_in(column: ChunkedArray) -> int:
    """Bytes of a column's lists, four a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    several = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    return 4 * (pc.sum(pc.list_value_length(column)).as_py() or 0) if several else 0


def _holds(kind: DataType, wanted: str | None) -> bool:
    """True for a type that ``KINDS`` allows the column."""
    from pyarrow import types

    if wanted is not None and wanted.startswith("lists of "):
        several = types.is_list(kind) or types.is_large_list(kind)
        return several and _holds(kind.value_type, wanted.removeprefix("lists of "))
    if wanted == "integers":
        return bool(types.is_integer(kind))
    if wanted == "numbers":
        return bool(types.is_integer(kind) or types.is_floating(kind))
    if wanted is not None:
        return bool(types.is_boolean(kind))
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))  # null: no row has one
