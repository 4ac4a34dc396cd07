"""Rows without a usable question or answer: named by file and line, and refused above a share."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.core.errors import DataError
from rlep.core.types import Int32Array
from rlep.data.prompts import PromptSet, load_prompts


def load(*paths: Path, limit: float = 1.0) -> PromptSet:
    def encode(messages: object) -> Int32Array:
        return np.zeros(1, dtype=np.int32)

    return load_prompts(paths, encode=encode, max_tokens=9, max_bad_rows=limit)


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def good(count: int) -> list[str]:
    return [f'{{"question": "{number}", "answer": "1"}}' for number in range(count)]


def test_each_bad_row_is_named_by_line_with_what_is_wrong(tmp_path: Path) -> None:
    path = written(
        tmp_path / "own.jsonl",
        '{"question": "a", "answer": "1"}',
        '{"qestion": "b", "answer": "2"}',
        "",  # an empty line is no row, and counts as a line
        '{"question": "c", "anwser": "3"}',
        '{"question": "d"}',
        '{"question": " ", "answer": "5"}',
        '{"question": "e", "answer": null}',
        '{"question": "f", "answer": NaN}',
        '{"question": "g", "answer": "so it is ####"}',
        '{"question": "h", "answer": ""}',
    )
    assert load(path).report.bad_rows == (
        f"{path}: 8 of 9 rows (88.9 %) have no usable question or answer, and are left out",
        '  line 2: no "question", but "qestion"',
        '  line 4: no "answer", but "anwser"',
        '  line 5: no "answer"',
        '  line 6: "question" is blank',
        '  line 7: "answer" is null',
        '  line 8: "answer" is NaN',
        '  line 9: "answer" has nothing after ####',
        '  line 10: "answer" is blank',
    )


def test_a_misspelt_first_row_is_a_bad_row_like_any_other(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", '{"qestion": "b", "answer": "2"}', '{"question": "a", "answer": "1"}')
    loaded = load(path)
    assert loaded.report.bad_rows[1:] == ('  line 1: no "question", but "qestion"',)
    assert [prompt.question for prompt in loaded.prompts] == ["a"]


def test_a_file_of_misspelt_rows_only_is_refused_by_its_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", '{"qestion": "b", "answer": "2"}', '{"qestion": "a", "answer": "1"}')
    with pytest.raises(DataError, match=r"no known question and reference columns\. Found: qestion, answer"):
        load(path)


def test_a_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table({"problem": ["a", None, "c"], "answer": ["1", "2", "  "]}), path)
    assert load(path).report.bad_rows == (
        f"{path}: 2 of 3 rows (66.7 %) have no usable question or answer, and are left out",
        '  row 2: "problem" is null',
        '  row 3: "answer" is blank',
    )


def test_verl_rows_are_named_by_the_nested_key(tmp_path: Path) -> None:
    path = written(
        tmp_path / "verl.jsonl",
        '{"prompt": "a", "reward_model": {"ground_truth": "1"}}',
        '{"prompt": "b", "reward_model": {"groundtruth": "1"}}',
        '{"prompt": [], "reward_model": {"ground_truth": "1"}}',
        '{"prompt": "c", "reward_model": null}',
    )
    assert load(path).report.bad_rows[1:] == (
        '  line 2: no "ground_truth", but "groundtruth"',
        '  line 3: "prompt" is blank',
        '  line 4: "reward_model" is null',
    )


def test_ten_are_named_and_the_others_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", '{"question": "a", "answer": "1"}', *['{"question": "b"}'] * 12)
    lines = load(path).report.bad_rows
    assert (len(lines), lines[10], lines[11]) == (12, '  line 11: no "answer"', "  and 2 more")


def test_above_the_share_the_file_is_refused_at_the_share_it_is_not(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", *good(19), "{}")
    assert len(load(path, limit=0.05).prompts) == 19  # 1 of 20 is 5 %
    with pytest.raises(DataError, match=r"data\.max_bad_rows = 4 %") as refused:
        load(path, limit=0.04)
    assert '  line 20: no "question"' in str(refused.value)


def test_the_share_is_of_each_file(tmp_path: Path) -> None:
    large = written(tmp_path / "large.jsonl", *good(98))
    small = written(tmp_path / "small.jsonl", '{"question": "a", "answer": "1"}', '{"question": "b"}')
    with pytest.raises(DataError, match=r"small\.jsonl: 1 of 2 rows"):  # 1 of 100 together
        load(large, small, limit=0.05)
