"""Files that a run directory may hold where others wrote it: the page says what is wrong, and the console goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.core.errors import DataError
from rlep.view.run_files import RunPlace
from rlep.view.samples import read_samples
from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import page

STEP, TEXTS, SAMPLES = (
    "rollouts/step-000001.parquet",
    "rollouts/step-000001.tokens.parquet",
    "samples/step-000002.parquet",
)


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """A copy of the run ``a``."""
    made = tmp_path / "runs" / "a"
    shutil.copytree(runs / "a", made, ignore=shutil.ignore_patterns("checkpoints"))
    return made


@pytest.mark.parametrize(
    "name",
    ["config.json", "manifest.json", "events.jsonl", "metrics.jsonl", "evaluations.jsonl", "timeline.json", STEP],
)
def test_a_pipe_is_named_and_not_waited_for(copied: Path, name: str) -> None:
    (copied / name).unlink(missing_ok=True)
    os.mkfifo(copied / name)
    client = client_of(copied.parent)
    assert "runs~a" in page(client, "/")
    paths = ("/runs/runs~a", "/runs/runs~a/actors", "/runs/runs~a/steps/1", "/runs/runs~a/pool")
    text = "".join(page(client, path) for path in paths)
    assert (f"{name} is no regular file" in text) is (name != "manifest.json")  # of which the list shows one word


def test_a_name_may_be_any_bytes(copied: Path) -> None:
    copied.rename(os.fsdecode(os.fsencode(copied.parent) + b"/\xff\xfeb"))
    client = client_of(copied.parent)
    name = "runs~��b"
    assert name in page(client, "/")
    assert name in page(client, f"/compare?run={quote(name)}")
    for path in ("", "/steps/1", "/steps/1/groups/0", "/evaluations/2", "/actors", "/pool"):
        assert name in page(client, f"/runs/{quote(name)}{path}")


KINDS = {
    "strings": lambda rows: pa.array(["x"] * rows),
    "bytes": lambda rows: pa.array([b"\xff"] * rows),
    "lists": lambda rows: pa.array([["x"]] * rows),
    "nulls": pa.nulls,
    "not a number": lambda rows: pa.array([float("nan")] * rows),
    "infinite": lambda rows: pa.array([float("inf")] * rows),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [STEP, TEXTS, SAMPLES])
def test_columns_of_any_kind_end_in_a_page(copied: Path, name: str) -> None:
    table = pq.read_table(copied / name)
    client, prompt = client_of(copied.parent), table["prompt_id"][0].as_py()
    question = f"/runs/runs~a/prompts/{prompt}"
    paths = {
        STEP: ["/runs/runs~a/steps/1", "/runs/runs~a/steps/1/groups/0", "/runs/runs~a/pool", question],
        TEXTS: ["/runs/runs~a/steps/1", "/runs/runs~a/steps/1/groups/0", question],
        SAMPLES: ["/runs/runs~a/evaluations/2", f"/runs/runs~a/evaluations/2?prompt={prompt}", question],
    }[name]
    for at, column in enumerate(table.column_names):
        for kind, made in KINDS.items():
            pq.write_table(table.set_column(at, column, made(len(table))), copied / name)
            for path in paths:
                assert client.get(path).status_code == 200, (column, kind, path)
    pq.write_table(table.set_column(0, table.column_names[0], pa.array([1.5] * len(table))), copied / name)
    text = "".join(page(client, path) for path in paths)
    assert f"{name}: {table.column_names[0]} does not hold " in text


def test_rows_without_a_reward_are_named(copied: Path) -> None:
    table = pq.read_table(copied / STEP)
    at = table.column_names.index("reward")
    empty = pa.array([None, *table["reward"].to_pylist()[1:]], pa.float32())
    pq.write_table(table.set_column(at, "reward", empty), copied / STEP)
    assert f"{STEP} has rows without reward" in page(client_of(copied.parent), "/runs/runs~a/steps/1")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """Most bytes of a row group, fewer than are usual."""
    monkeypatch.setattr("rlep.view.rollouts.MOST_ROW_GROUP_BYTES", 2**20)
    return 2**20


def test_a_small_file_with_large_texts_is_refused_before_they_are_made(copied: Path, bound: int) -> None:
    table = pq.read_table(copied / TEXTS).slice(0, 1)
    row, rows = table.to_pylist()[0], 100
    many = pa.Table.from_pylist([row | {"text": "A" * 2**14}] * rows, table.schema)
    pq.write_table(many, copied / TEXTS, compression="zstd")
    assert (copied / TEXTS).stat().st_size < bound
    assert pq.read_metadata(copied / TEXTS).row_group(0).total_byte_size < bound
    whole = rows * (2**14 + sum(len(row[name].encode()) for name in ("question", "reference", "prompt")))
    text = page(client_of(copied.parent), f"/runs/runs~a/steps/1/groups/{row['group']}")
    assert f"{TEXTS}: a row group has {whole} bytes; at most {bound}" in text


def test_a_small_file_with_long_lists_is_refused(copied: Path, bound: int) -> None:
    table = pq.read_table(copied / TEXTS).slice(0, 1)
    row, many = table.to_pylist()[0], bound // 4 + 1
    pq.write_table(pa.Table.from_pylist([row | {"token_ids": [7] * many}], table.schema), copied / TEXTS)
    assert pq.read_metadata(copied / TEXTS).row_group(0).total_byte_size < bound
    text = page(client_of(copied.parent), f"/runs/runs~a/steps/1/groups/{row['group']}")
    assert f"{TEXTS}: a row group has {4 * many} bytes; at most {bound}" in text


def test_the_rows_that_are_shown_together_are_bounded(copied: Path, bound: int) -> None:
    table = pq.read_table(copied / TEXTS).slice(0, 1)
    row = table.to_pylist()[0]
    rows = [row | {"text": "A" * 2**18, "token_ids": [7] * 2**14}] * 8  # a row group each, 0.3 of 1 MiB
    pq.write_table(pa.Table.from_pylist(rows, table.schema), copied / TEXTS, row_group_size=1)
    texts = 2**18 + sum(len(row[name].encode()) for name in ("question", "reference", "prompt"))
    each = texts + 4 * (2**14 + len(row["logprobs"]))
    text = page(client_of(copied.parent), f"/runs/runs~a/steps/1/groups/{row['group']}")
    assert f"{TEXTS}: its rows together have {each * (bound // each + 1)} bytes; at most {bound}" in text


def test_a_text_that_is_not_utf_8_is_damage(copied: Path) -> None:
    prompt = pq.read_table(copied / TEXTS)["prompt_id"][0].as_py()
    for name in (TEXTS, SAMPLES, STEP):
        raw = (copied / name).read_bytes()
        table = pq.read_table(copied / name)
        broken = pa.array([b"\xff\xfe"] * len(table)).view(pa.string())
        for column in {"text", "question", "status", "extracted"} & {*table.column_names}:
            at = table.column_names.index(column)
            pq.write_table(table.set_column(at, column, broken), copied / name)
            for path in ("steps/1", "steps/1/groups/0", f"prompts/{prompt}", "evaluations/2"):
                page(client_of(copied.parent), f"/runs/runs~a/{path}")
        (copied / name).write_bytes(raw)


def test_a_file_without_the_column_that_is_looked_in_says_so(copied: Path) -> None:
    table = pq.read_table(copied / TEXTS)
    pq.write_table(table.drop_columns(["prompt_id"]), copied / TEXTS)
    path = f"/runs/runs~a/prompts/{table['prompt_id'][0].as_py()}"
    assert f"{TEXTS} has no column prompt_id" in page(client_of(copied.parent), path)


def test_a_report_reads_samples_as_the_console_does(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = RunPlace("a", copied)
    assert read_samples(place, 2).count > 0
    with monkeypatch.context() as patch:
        patch.setattr("rlep.view.samples.MOST_SAMPLES", 1)
        with pytest.raises(DataError, match=rf"{SAMPLES} has \d+ rows; at most 1 are read"):
            read_samples(place, 2)
    (copied / SAMPLES).rename(copied.parent / "elsewhere")
    (copied / SAMPLES).symlink_to(copied.parent / "elsewhere")
    with pytest.raises(DataError, match=f"{SAMPLES} is a link out of the run directory and is not read"):
        read_samples(place, 2)
    (copied / SAMPLES).unlink()
    os.mkfifo(copied / SAMPLES)
    with pytest.raises(DataError, match=f"{SAMPLES} is no regular file and is not read"):
        read_samples(place, 2)
