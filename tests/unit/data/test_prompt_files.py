"""Row shapes: verl's and plain ones, in Parquet and JSONL; and files that are refused."""

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.core.errors import DataError
from rlep.core.types import Message
from rlep.data.prompt_files import BATCH_ROWS, MAX_LINE_BYTES, read_rows, write_verl
from rlep.data.prompt_rows import PromptRow, Wanted
from rlep.metrics.catalogue import metric_for

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
MESSAGES = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))


def parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def verl_row(**changes: object) -> dict[str, object]:
    row: dict[str, object] = {
        "data_source": "math_dapo",
        "prompt": CHAT,
        "ability": "MATH",
        "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": "4"},
        "extra_info": {"index": "9a9b6eb4"},
    }
    return row | changes


def test_verl_parquet(tmp_path: Path) -> None:
    rows = list(read_rows(parquet(tmp_path / "verl.parquet", [verl_row()])))
    assert rows == [PromptRow(MESSAGES, "4", "math_dapo")]
    assert rows[0].question == "Be brief.\n\nWhat is 2 + 2?"


def test_verl_parquet_with_stored_candidates_and_an_older_pandas_index(tmp_path: Path) -> None:
    reward = {"style": "rule", "ground_truth": "4", "candidates": ["2+2=4", "4"]}
    path = parquet(tmp_path / "candidates.parquet", [verl_row(reward_model=reward, __index_level_0__=0)])
    assert [row.reference for row in read_rows(path)] == ["4"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_candidates_are_read_where_they_are_asked_for(tmp_path: Path, kind: str) -> None:
    reward = {"style": "rule", "ground_truth": "4", "candidates": ["2+2=4", "4", "2+2=4"]}
    rows: list[dict[str, object]] = [verl_row(reward_model=reward), verl_row(reward_model=reward | {"candidates": []})]
    path = parquet(tmp_path / "c.parquet", rows) if kind == "parquet" else jsonl(tmp_path / "c.jsonl", *rows)
    assert [row.candidates for row in read_rows(path, Wanted(candidates=True))] == [("2+2=4", "4", "2+2=4"), ()]
    assert [row.candidates for row in read_rows(path)] == [(), ()]
    plain: dict[str, object] = {"problem": "2 + 2?", "answer": "4", "candidates": ["4"]}
    path = parquet(tmp_path / "p.parquet", [plain]) if kind == "parquet" else jsonl(tmp_path / "p.jsonl", plain)
    assert list(read_rows(path, Wanted(candidates=True))) == [PromptRow((Message("user", "2 + 2?"),), "4", "p", ("4",))]
    bare: dict[str, object] = {"problem": "2 + 2?", "answer": "4"}
    path = parquet(tmp_path / "b.parquet", [bare]) if kind == "parquet" else jsonl(tmp_path / "b.jsonl", bare)
    assert [row.candidates for row in read_rows(path, Wanted(candidates=True))] == [()]


def test_a_small_file_of_repeated_candidates_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    reward = {
        "style": "rule",
        "ground_truth": "4",
        "candidates": ["x" * 10**6] * 30,
    }  # 30 MB a row, and 43 of its other texts
    path = parquet(tmp_path / "bomb.parquet", [verl_row(reward_model=reward)] * 4)
    assert path.stat().st_size < 10**6  # one text, and 120 references to it
    with pytest.raises(DataError, match=r"row 1: 30000043 bytes of text; at most 16777216 a row"):
        list(read_rows(path, Wanted(candidates=True)))


@pytest.mark.parametrize("found", ['["4", null]', "[4]", '"4"', "{}"])
def test_candidates_that_are_no_texts_are_refused(tmp_path: Path, found: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"problem": "2 + 2?", "answer": "4", "candidates": ' + found + "}\n")
    with pytest.raises(DataError, match="line 1: candidates are no list of texts"):
        list(read_rows(path, Wanted(candidates=True)))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_candidates_are_written_as_the_authors_do(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"out.{kind}"
    rows = [PromptRow(MESSAGES, str(n), "here", ("a", "é\n")[: n % 3]) for n in range(70)]  # more than a row group
    assert write_verl(path, iter(rows), split="train", candidates=True) == 70
    assert list(read_rows(path, Wanted(candidates=True))) == rows
    if kind == "parquet":
        reward = pq.read_table(path).to_pylist()[1]["reward_model"]
        assert reward == {"style": "rule", "ground_truth": "1", "candidates": ["a"]}


@pytest.mark.parametrize(
    "row",
    [
        verl_row(prompt=json.dumps(CHAT)),
        verl_row(reward_model=json.dumps({"style": "rule", "ground_truth": "4"})),
        verl_row(reward_model={"style": "rule", "ground_truth": ["4"]}),
        verl_row(reward_model={"style": "rule", "ground_truth": 4}),
    ],
    ids=["prompt as JSON", "reward model as JSON", "list of one", "number"],
)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_verl_variants(tmp_path: Path, kind: str, row: dict[str, object]) -> None:
    path = parquet(tmp_path / "v.parquet", [row]) if kind == "parquet" else jsonl(tmp_path / "v.jsonl", row)
    assert list(read_rows(path)) == [PromptRow(MESSAGES, "4", "math_dapo")]


@pytest.mark.parametrize(
    ("question", "reference"),
    [
        ("problem", "answer"),
        ("question", "answer"),
        ("prompt", "answer"),
        ("Problem", "Answer"),
        ("prompt", "ground_truth"),
    ],
)
def test_plain_columns(tmp_path: Path, question: str, reference: str) -> None:
    raw = {"id": 3, "Solution": "long", question: "2 + 2?", reference: 4}
    expected = [PromptRow((Message("user", "2 + 2?"),), "4", "plain")]
    assert list(read_rows(parquet(tmp_path / "plain.parquet", [raw]))) == expected
    assert list(read_rows(jsonl(tmp_path / "plain.jsonl", raw))) == expected


def test_a_gsm8k_answer_is_what_follows_the_hashes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "gsm.jsonl", {"question": "?", "answer": "48/2 = <<48/2=24>>24\n#### 72"})
    assert [row.reference for row in read_rows(path)] == ["72"]


def test_a_question_that_starts_like_json_stays_a_question(tmp_path: Path) -> None:
    texts = ["[x] + 1 = 3", "[1, 2]", "[]", "[" * 100_000]
    path = jsonl(tmp_path / "brackets.jsonl", *[{"question": text, "answer": "2"} for text in texts])
    assert [row.question for row in read_rows(path)] == texts


def test_integer_references_that_went_through_floats(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f.parquet", [{"problem": "a", "answer": 33.0}, {"problem": "b", "answer": None}])
    assert [row.reference for row in read_rows(path)] == ["33", ""]


def test_jsonl_with_byte_order_mark_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "\xc3\xa9", "answer": "1"}\r\n\r\n{"question": "b", "answer": "2"}\r\n')
    assert [(row.question, row.reference) for row in read_rows(path)] == [("é", "1"), ("b", "2")]


def test_rows_beyond_one_batch_keep_their_order(tmp_path: Path) -> None:
    count = BATCH_ROWS + 3
    path = parquet(tmp_path / "long.parquet", [{"problem": f"q{i}", "answer": i} for i in range(count)])
    assert [row.reference for row in read_rows(path)] == [str(i) for i in range(count)]


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))), min_size=1, max_size=5
    )
)
def test_what_write_verl_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("verl") / "round.parquet"
    rows = [PromptRow((Message("user", question),), reference.strip(), "here") for question, reference in texts]
    write_verl(path, rows, split="train")
    assert list(read_rows(path)) == rows
    table = pq.read_table(path).to_pylist()
    assert table[0]["reward_model"] == {"style": "rule", "ground_truth": rows[0].reference}
    assert [row["extra_info"] for row in table] == [{"index": i, "split": "train"} for i in range(len(rows))]


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "odd.parquet", [{"query": "a", "target": "b"}])
    with pytest.raises(DataError, match=r"Found: query, target\. Known: prompt with reward_model\.ground_truth"):
        list(read_rows(path))


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.parquet: no such file"):
        read_rows(tmp_path / "gone.parquet")
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path)
    (tmp_path / "data.csv").write_text("problem,answer\n")
    with pytest.raises(DataError, match=r"not \.csv"):
        read_rows(tmp_path / "data.csv")


def test_a_torn_parquet_file(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet", [{"problem": "a" * 50, "answer": "b"}] * 100).read_bytes()
    for name, data in [("torn", whole[: len(whole) // 2]), ("empty", b""), ("text", b"not parquet at all")]:
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"{name}\.parquet: not a readable Parquet file"):
            list(read_rows(path))


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xff\xfe")]
    )
    path = tmp_path / "bytes.parquet"
    pq.write_table(pa.table({"problem": bad, "answer": ["1"]}), path)
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "a", "answer": ', "not JSON: Expecting value at column 29"),
        (b'{"question": "a", "answer": "4', "not JSON: Unterminated string starting at column 29"),
        (b'["question", "answer"]', "expected a JSON object, found list"),
        (b'{"question": "\xff", "answer": "1"}', "not UTF-8"),
        (b'{"question": "\\ud800", "answer": "1"}', "no UTF-8 form"),
        (b'{"question": 5, "answer": "1"}', "the question is int"),
        (b'{"question": "a", "answer": ["1", "2"]}', "the reference is list, expected one text or number"),
        (b'{"question": "a", "answer": true}', "the reference is bool"),
        (b'{"question": [{"role": "user"}], "answer": "1"}', "a message needs a text role and a text content"),
        (b"[" * 200_000, "not JSON"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"question": "fine", "answer": "1"}\n\n' + line + b"\n")
    rows = read_rows(path)
    assert next(rows).question == "fine"
    with pytest.raises(DataError, match=rf"bad\.jsonl, line 3: .*{message}"):
        next(rows)


def test_a_malformed_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [verl_row(), verl_row(prompt=[{"role": "user", "content": None}])])
    with pytest.raises(DataError, match=r"rows\.parquet, row 2: a message needs"):
        list(read_rows(path))


def test_a_line_that_is_too_long_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"question": "' + b"x" * MAX_LINE_BYTES + b'", "answer": "1"}\n')
    with pytest.raises(DataError, match=f"line 1: longer than {MAX_LINE_BYTES} bytes"):
        list(read_rows(path))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_all_columns_of_a_row_are_kept_as_json_where_they_are_asked_for(tmp_path: Path, kind: str) -> None:
    row: dict[str, object] = {"problem": "2 + 2?", "answer": "4", "level": 3, "tags": ["a", None], "info": {"x": 0.5}}
    path = tmp_path / f"own.{kind}"
    if kind == "parquet":
        when = {
            "at": datetime(2026, 1, 2),
            "image": {"bytes": b"x", "path": "y"},
            "raw": b"z",
            "exact": Decimal("0.10"),
        }
        pq.write_table(pa.Table.from_pylist([row | when | {"candidates": ["4"]}]), path)
    else:
        path.write_text(json.dumps(row | {"candidates": ["4"]}) + "\n")
    (read,) = read_rows(path, Wanted(columns=True))
    more = {"at": "2026-01-02 00:00:00", "exact": "0.10"} if kind == "parquet" else {}
    assert json.loads(read.columns) == row | more | {"data_source": "own"}
    assert [read.columns for read in read_rows(path)] == [""]


def test_columns_of_verl_have_no_candidates_unless_they_are_wanted_by_themselves(tmp_path: Path) -> None:
    reward = {"style": "rule", "ground_truth": "4", "candidates": ["2+2=4"]}
    path = parquet(tmp_path / "verl.parquet", [verl_row(reward_model=reward, extra_info={"index": 7})])
    for candidates in (False, True):
        (read,) = read_rows(path, Wanted(candidates=candidates, columns=True))
        columns = json.loads(read.columns)
        assert columns["reward_model"] == {"style": "rule", "ground_truth": "4"}
        assert columns["extra_info"] == {"index": 7}
        assert (read.reference, read.candidates) == ("4", ("2+2=4",) if candidates else ())
    written = tmp_path / "verl.jsonl"
    written.write_text(json.dumps(verl_row(reward_model=json.dumps(reward))) + "\n")
    (read,) = read_rows(written, Wanted(candidates=True, columns=True))
    assert json.loads(json.loads(read.columns)["reward_model"]) == {"style": "rule", "ground_truth": "4"}
    assert (read.reference, read.candidates) == ("4", ("2+2=4",))
    written.write_text(json.dumps({"question": "2+2?", "answer": "4", "reward_model": "skywork-v2"}) + "\n")
    (read,) = read_rows(written, Wanted(columns=True))
    assert json.loads(read.columns)["reward_model"] == "skywork-v2"


def test_a_map_s_texts_are_counted_before_they_are_unpacked(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"question": "1 + 1?", "answer": "2"}] * 2)
    kind = pa.map_(pa.string(), pa.string())
    extra = pa.array([[("a", "b")], [(str(key), "x" * 10**6) for key in range(30)]], type=kind)
    pq.write_table(table.append_column("extra_info", extra), tmp_path / "map.parquet")
    with pytest.raises(DataError, match=r"row 2: 30000\d+ bytes of text; at most 16777216 a row"):
        list(read_rows(tmp_path / "map.parquet", Wanted(columns=True)))
    assert len(list(read_rows(tmp_path / "map.parquet"))) == 2  # without it


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("He has 9 + 9 = 18.\n#### 18", "18"),
        ("#### 18 ", "18"),
        ("[Step 1] 9 + 9 = 18\n#### 18", "18"),
        ("So #### $1,800", "$1,800"),
        ("def f():\n    return '####'", "def f():\n    return '####'"),
        ("First.\n##### Result", "First.\n##### Result"),
        ("#### Lemma\nTrue.\n#### Proof\nBy induction.", "#### Lemma\nTrue.\n#### Proof\nBy induction."),
        ('{"io": [{"stdin": "####", "stdout": "#..#"}]}', '{"io": [{"stdin": "####", "stdout": "#..#"}]}'),
    ],
)
def test_a_final_line_after_four_signs_is_the_answer_and_no_other_is(
    tmp_path: Path, answer: str, reference: str
) -> None:
    (row,) = read_rows(jsonl(tmp_path / "rows.jsonl", {"question": "1?", "answer": answer}))
    assert row.reference == reference


@pytest.mark.parametrize(
    ("source", "read"), [("gsm8k ", "gsm8k"), ("math\n", "math"), (" ", "rows"), ("a \t b", "a b")]
)
def test_a_data_source_can_be_part_of_a_metric_s_name(tmp_path: Path, source: str, read: str) -> None:
    (row,) = read_rows(jsonl(tmp_path / "rows.jsonl", {"question": "1?", "answer": "1", "data_source": source}))
    assert row.data_source == read
    assert metric_for(f"evaluation/{read}/avg")


@pytest.mark.parametrize(
    ("stem", "read"),
    [("aime 2024 ", "aime 2024"), ("math\n", "math"), ("a\tb", "a b"), (" ", "data"), ("rows", "rows")],
)
def test_a_file_s_name_that_is_the_data_source_can_be_part_of_a_metric_s_name(
    tmp_path: Path, stem: str, read: str
) -> None:
    path = jsonl(tmp_path / f"{stem}.jsonl", {"question": "1?", "answer": "1"})
    assert [row.data_source for row in read_rows(path)] == [read]
    assert [row.data_source for row in read_rows(path, Wanted(source=stem))] == [read]
    assert metric_for(f"evaluation/{read}/avg")


def test_what_nests_too_deep_is_an_error_of_its_row(tmp_path: Path) -> None:
    deep: dict[str, object] = {"prompt": "1?", "reward_model": "[" * 100_000}
    with pytest.raises(DataError, match=r"deep\.jsonl, line 1: "):
        list(read_rows(jsonl(tmp_path / "deep.jsonl", deep)))
