"""Shards of JSON lines: one record a line, log-probs written so that they read back to the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlep.core.errors import DataError
from rlep.services.pool.files.export_rows import ExportRow, fields_of

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused before it is parsed: 2^20 tokens with log-probs take about half of it."""


def write_jsonl(path: Path, lines: Iterable[ExportRow]) -> None:
    """Write lines, one at a time in memory."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json_of(line) + "\n")


def json_of(line: ExportRow, *, ascii_only: bool = False) -> str:
    """One line as JSON, without a newline; ``ascii_only`` for a terminal, which may show no other character."""
    fields = fields_of(line)
    fields["tokens"] = fields["tokens"].tolist()
    fields["logprobs"] = None if fields["logprobs"] is None else fields["logprobs"].tolist()
    return json.dumps(fields, allow_nan=False, ensure_ascii=ascii_only, separators=(",", ":"))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The fields of each line. Raises ``DataError``, naming the line, for what is not a JSON object or too long."""
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(raw) > MAX_LINE_BYTES:
                raise DataError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
            try:
                fields = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: not JSON: {error}") from None
            if not isinstance(fields, dict):
                raise DataError(f"{path}, line {number}: not a JSON object")
            yield fields | {name: _array(fields.get(name), kind) for name, kind in _ARRAYS if name in fields}


_ARRAYS: tuple[tuple[str, type[np.generic] | None], ...] = (("tokens", None), ("logprobs", np.float32))


def _array(values: object, kind: type[np.generic] | None) -> object:
    """A list of numbers as an array; anything else as it is, for the row's own checks to refuse."""
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return values
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which the codec refuses
        try:
            return np.asarray(values, kind)
        except OverflowError:
            return values
