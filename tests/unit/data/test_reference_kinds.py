"""References of every kind of number and list, and texts in every encoding that Parquet has for them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.core.errors import DataError
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import Wanted

QUESTIONS = [f"question {n} of many {'x' * (n % 7)}" for n in range(1000)]
NUMBERS = [
    (pa.array([0.1], pa.float32()), "0.1"),
    (pa.array([0.1], pa.float16()), "0.1"),
    (pa.array([16777216], pa.float32()), "16777216"),
    (pa.array([0.1], pa.float64()), "0.1"),
    (pa.array([1e23], pa.float64()), "1" + "0" * 23),
    (pa.array([-0.0], pa.float64()), "0"),
    (pa.array([Decimal("1.500")], pa.decimal128(10, 3)), "1.5"),
    (pa.array([Decimal("-7.00")], pa.decimal128(10, 2)), "-7"),
    (pa.array([Decimal(10**30)], pa.decimal256(50, 0)), "1" + "0" * 30),
    (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    (pa.array([[0.1]], pa.list_(pa.float32())), "0.1"),
]


def of(path: Path) -> list[tuple[str, str]]:
    """Reference and fault of each row."""
    return [(row.reference, row.fault) for row in read_rows(path)]


@pytest.mark.parametrize(("answers", "text"), NUMBERS, ids=lambda one: str(getattr(one, "type", one)))
def test_a_number_of_parquet_is_the_reference_as_its_type_spells_it(tmp_path: Path, answers: Any, text: str) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"question": ["q"], "answer": answers}), path)
    assert of(path) == [(text, "")]
    reward = pa.StructArray.from_arrays([pa.array(["rule"]), answers], ["style", "ground_truth"])
    pq.write_table(pa.table({"prompt": ["q"], "reward_model": reward}), path)
    assert of(path) == [(text, "")]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('"[\\"18\\"]"', '["18"]'),  # the verifier reads it, and a reward function gets it as it is
        ('["18"]', "18"),
        ('"[18]"', "[18]"),
        ('"[a, b)"', "[a, b)"),
        ('"[\\"1\\", \\"2\\"]"', '["1", "2"]'),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1e-7", "0.0000001"),
        ("2.50", "2.5"),
    ],
)
def test_a_number_or_a_list_of_one_text_in_json_is_read(tmp_path: Path, written: str, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f'{{"question": "q", "answer": {written}}}\n')
    assert of(path) == [(text, "")]


@pytest.mark.parametrize("written", ["1e400", "-1e400", "Infinity", "[1e400]"])
def test_a_number_too_large_is_no_reference_and_said_so(tmp_path: Path, written: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f'{{"question": "q", "answer": {written}}}\n')
    ((reference, fault),) = of(path)
    assert reference == ""
    assert fault.startswith('"answer" is infinite, or too large')


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "dictionary"])
def test_texts_are_read_in_every_encoding_page_version_and_compression(
    tmp_path: Path, encoding: str, compression: str, version: str
) -> None:
    path = tmp_path / "data.parquet"
    table = pa.table({"question": QUESTIONS, "answer": pa.array(range(1000)), "share": pa.array([0.5] * 1000)})
    columns = {"question": encoding, "answer": "DELTA_BINARY_PACKED", "share": "BYTE_STREAM_SPLIT"}
    how = (
        {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": columns}
    )
    pq.write_table(table, path, compression=compression, data_page_version=version, **how)
    assert [(row.question, row.reference) for row in read_rows(path)] == [
        (question, str(n)) for n, question in enumerate(QUESTIONS)
    ]


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_chat_messages_are_read_in_delta_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "data.parquet"
    rows = [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "7"}} for text in QUESTIONS
    ]
    leaves = ("prompt.list.element.role", "prompt.list.element.content", "reward_model.ground_truth")
    pq.write_table(
        pa.Table.from_pylist(rows), path, use_dictionary=False, column_encoding=dict.fromkeys(leaves, encoding)
    )
    assert [(row.question, row.reference) for row in read_rows(path)] == [(text, "7") for text in QUESTIONS]


def test_a_text_that_is_repeated_by_its_beginning_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"  # 2 MB by 2,000 rows: 4 GB of text in a few kilobytes
    questions = pa.chunked_array([pa.array(["x" * 2_000_000] * 500)] * 4)
    table = pa.table({"prompt": questions, "answer": ["1"] * 2000})
    lists = pa.table({"prompt": pa.array([[{"role": "user", "content": "x" * 2_000_000}] * 700]), "answer": ["1"]})
    for one, name in ((table, "prompt"), (lists, "prompt.list.element.content")):
        pq.write_table(one, path, use_dictionary=False, column_encoding={name: "DELTA_BYTE_ARRAY"}, compression="zstd")
        if one is lists:
            with pytest.raises(DataError, match=r"may unpack to more than|at most"):
                list(read_rows(path))
        else:
            assert path.stat().st_size < 1 << 20
            assert len(next(read_rows(path)).question) == 2_000_000


def test_json_is_written_of_rows_with_narrow_numbers(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"question": ["q"], "answer": ["1"], "x": pa.array([0.1], pa.float32())}), path)
    (row,) = read_rows(path, Wanted(columns=True))
    assert json.loads(row.columns)["x"] == 0.1
