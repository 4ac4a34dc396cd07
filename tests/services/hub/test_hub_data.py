"""``hf:ORG/NAME[/CONFIG]:SPLIT``: the hub's Parquet conversion, read as files are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, DataError
from rlep.data.prompt_files import read_rows
from rlep.hub.repository import CONVERSION
from rlep.hub.resolve import pin
from tests.fake_hub import Hub

GSM8K = "datasets/org/gsm8k"


def shard(*rows: tuple[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"question": [q for q, _ in rows], "answer": [a for _, a in rows]}), sink)
    return sink.getvalue().to_pybytes()


def push(hub: Hub) -> str:
    hub.push(GSM8K, {"README.md": b"", "loader.py": b"raise SystemExit"})
    return hub.push(
        GSM8K,
        {
            "main/train/0000.parquet": shard(("1 + 1?", "So\n#### 2"), ("2 + 1?", "3")),
            "main/train/0001.parquet": shard(("3 + 1?", "4")),
            "main/test/0000.parquet": shard(("9 + 9?", "18")),
            "large/partial-train/0000.parquet": shard(("5?", "5")),
        },
        branch=CONVERSION,
    )


def test_a_split_is_all_its_shards_in_order_and_its_source_is_the_data_set(hub: Hub) -> None:
    push(hub)
    rows = list(read_rows(Path("hf:org/gsm8k/main:train")))
    assert [(row.question, row.reference, row.data_source) for row in rows] == [
        ("1 + 1?", "2", "gsm8k"),
        ("2 + 1?", "3", "gsm8k"),
        ("3 + 1?", "4", "gsm8k"),
    ]


def test_names_are_pinned_to_configuration_and_commit_and_then_ask_nobody(hub: Hub) -> None:
    hub.push("datasets/org/aime", {"default/test/0000.parquet": shard(("1?", "1"))}, branch=CONVERSION)
    commit = push(hub)
    settings = [
        "model.path=m",
        'data.train="hf:org/gsm8k/main:train"',
        'data.evaluation=["hf:org/aime:test", "own.jsonl"]',
    ]
    data = pin(load_config([], settings)).data
    assert data.train_paths[0] == Path(f"hf:org/gsm8k/main:train@{commit}")
    assert [path.name for path in data.evaluation][1] == "own.jsonl"
    assert str(data.evaluation[0]).startswith("hf:org/aime/default:test@")
    assert len(list(read_rows(data.train_paths[0]))) == 3
    hub.asked.clear()
    assert len(list(read_rows(data.train_paths[0]))) == 3
    assert hub.asked == []


def test_a_pinned_name_reads_what_it_named_when_the_data_set_has_moved_on(hub: Hub) -> None:
    commit = push(hub)
    hub.push(GSM8K, {"main/train/0000.parquet": shard(("7?", "7"))}, branch=CONVERSION)
    assert [row.reference for row in read_rows(Path("hf:org/gsm8k/main:train"))] == ["7"]
    assert [row.reference for row in read_rows(Path(f"hf:org/gsm8k/main:train@{commit}"))] == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hf:org/gsm8k:train", "hf:org/gsm8k:train: there are the configurations large, main: name one"),
        ("hf:org/gsm8k/socratic:train", "there are the configurations large, main: name one"),
        ("hf:org/gsm8k/main:dev", "no split dev in main: there are test, train"),
        ("hf:org/gsm8k/large:train", "the hub converted only the first part of it: download the data set"),
        ("hf:org/none:train", "shows no data set org/none"),
    ],
)
def test_a_name_that_stands_for_nothing_says_what_there_is(hub: Hub, name: str, sentence: str) -> None:
    push(hub)
    with pytest.raises(DataError) as caught:
        list(read_rows(Path(name)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["hf:org/gsm8k", "hf:gsm8k:train", "hf:org/a:b:c", "hf:org/a:train@main"])
def test_a_name_of_another_form_is_refused_as_the_config_is_read(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"data.train = .* names no data set of the hub: the form is hf:ORG/NAME:SPLIT"
    ):
        load_config([], [f'data.train="{name}"'])


def test_a_fault_of_a_row_is_told_by_the_data_set_s_name(hub: Hub) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"question": ["1?", "2?"], "answer": [["1"], ["2", "3"]]}), sink)
    hub.push("datasets/org/lists", {"default/train/0000.parquet": sink.getvalue().to_pybytes()}, branch=CONVERSION)
    with pytest.raises(DataError) as caught:
        list(read_rows(Path("hf:org/lists:train")))
    assert str(caught.value) == (
        "hf:org/lists:train, 0000.parquet, row 2: the reference is list, expected one text or number"
    )
