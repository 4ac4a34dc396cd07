"""``data.question`` and ``data.answer``: columns by names that rlep does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.check.prompts_shown import wanted_of
from rlep.config.settings import load_config
from rlep.core.errors import DataError
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import Wanted
from tests.unit.data.test_prompt_files import jsonl, verl_row

NAMED = Wanted(question="instruction", answer="output")


def written(path: Path, *rows: dict[str, Any]) -> Path:
    if path.suffix == ".jsonl":
        return jsonl(path, *rows)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_named_columns_are_read_before_known_ones(tmp_path: Path, name: str) -> None:
    row = {"instruction": "1 + 1?", "output": "So #### 2", "question": "other", "answer": "9", "id": 7}
    (read,) = read_rows(written(tmp_path / name, row), NAMED)
    assert (read.question, read.reference) == ("1 + 1?", "2")


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_one_may_be_named_alone(tmp_path: Path, name: str) -> None:
    (read,) = read_rows(
        written(tmp_path / name, {"question": "1 + 1?", "answer": "9", "output": "2"}), Wanted(answer="output")
    )
    assert (read.question, read.reference) == ("1 + 1?", "2")
    (read,) = read_rows(written(tmp_path / name, verl_row(output="5")), Wanted(answer="output"))
    assert read.reference == "5"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_training_set_without_the_column_is_refused_by_its_key(tmp_path: Path, name: str) -> None:
    """A slip in the name never falls back on another column."""
    path = written(tmp_path / name, {"question": "1 + 1?", "answer": "2"})
    with pytest.raises(DataError, match=rf"{path}: no column output, which data.answer names. Found: question, answer"):
        list(read_rows(path, Wanted(answer="output")))
    with pytest.raises(DataError, match=r"no column instruction, which data\.question names"):
        list(read_rows(path, NAMED))
    path = written(tmp_path / f"verl-{name}", verl_row())
    with pytest.raises(DataError, match=r"no column output, which data\.answer names"):
        list(read_rows(path, Wanted(answer="output")))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_held_out_set_without_the_columns_is_read_by_the_known_ones(tmp_path: Path, name: str) -> None:
    lenient = Wanted(question="instruction", answer="output", strict=False)
    (read,) = read_rows(written(tmp_path / name, {"question": "1 + 1?", "answer": "2"}), lenient)
    assert read.reference == "2"
    (read,) = read_rows(written(tmp_path / name, verl_row()), lenient)
    assert (read.question.splitlines()[-1], read.reference) == ("What is 2 + 2?", "4")
    with pytest.raises(DataError, match="no known question and reference columns"):
        list(read_rows(written(tmp_path / name, {"q": "1?", "a": "2"}), lenient))


def test_lines_without_the_named_column_are_counted_and_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"instruction": "1?", "ouput": "1"}, {"instruction": "2?", "output": "2"})
    rows = list(read_rows(path, NAMED))
    assert [(row.reference, row.fault) for row in rows] == [("", 'no "output", but "ouput"'), ("2", "")]


def test_the_keys_reach_the_reader() -> None:
    config = load_config([], ["data.question=instruction", "data.answer=output"])
    assert wanted_of(config, training=True) == NAMED
    assert not wanted_of(config).strict
