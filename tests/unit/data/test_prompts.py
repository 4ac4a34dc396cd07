"""Questions from files: what is merged, left out, refused, and how it is counted."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import DataError
from rlep.core.types import Int32Array, Message, prompt_id_of
from rlep.data.prompt_rows import PromptRow, Wanted
from rlep.data.prompts import PromptSet, load_prompts


def one_token_per_word(messages: object) -> Int32Array:
    words = [word for message in messages for word in message.content.split()]  # type: ignore[attr-defined]
    return np.arange(len(words), dtype=np.int32)


def load(*paths: Path, max_tokens: int = 100) -> PromptSet:
    return load_prompts(paths, encode=one_token_per_word, max_tokens=max_tokens, max_bad_rows=1)


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_plain_rows_become_prompts_in_file_order(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "aime.jsonl", {"problem": "one two", "answer": 7}, {"problem": "three", "answer": " 8 "})
    prompts = load(path).prompts
    assert [(p.question, p.reference, p.tokens.tolist(), p.data_source) for p in prompts] == [
        ("one two", "7", [0, 1], "aime"),
        ("three", "8", [0], "aime"),
    ]
    assert prompts[0].id == prompt_id_of("one two", "7")
    assert prompts[0].tokens.dtype == np.int32


def test_every_row_is_counted_once(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "mixed.jsonl",
        {"question": "a b", "answer": "1"},
        {"question": "a  b ", "answer": "1"},  # the same after whitespace
        {"question": "a b", "answer": "1"},  # the same to the letter
        {"question": "a b", "answer": "2"},  # another reference: kept, reported
        {"question": " ", "answer": "1"},
        {"question": "c", "answer": None},
        {"question": "c", "answer": float("nan")},
        {"question": "d e f g", "answer": "1"},
        {"question": "d e f g", "answer": "1"},
        {"question": "d e f", "answer": "1"},
    )
    loaded = load(path, max_tokens=3)
    report = loaded.report
    assert (report.rows, report.questions, report.duplicates) == (10, 3, 3)
    assert (report.empty, report.no_reference, report.too_long) == (1, 2, 1)
    assert report.rows == (report.questions + report.duplicates + report.empty + report.no_reference + report.too_long)
    assert report.conflicts == ("a b",)
    assert report.longest == 3
    assert str(report) == (
        "3 questions from 10 rows (longest prompt 3 tokens), 3 duplicates merged, 1 too long, 2 without reference, "
        "1 empty, 1 question with conflicting references"
    )


def test_duplicates_are_merged_across_files(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "first.jsonl", {"problem": "a", "answer": "1"})
    second = jsonl(tmp_path / "second.jsonl", {"question": "a", "answer": 1.0}, {"question": "b", "answer": 2.5})
    loaded = load(first, second)
    assert [(p.question, p.reference, p.data_source) for p in loaded.prompts] == [
        ("a", "1", "first"),
        ("b", "2.5", "second"),
    ]


def test_each_distinct_question_is_tokenised_once(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "many.jsonl", *[{"question": f"q {i % 7}", "answer": "1"} for i in range(700)])
    calls: list[Message] = []

    def encode(messages: object) -> Int32Array:
        calls.extend(messages)  # type: ignore[arg-type]
        return np.zeros(2, dtype=np.int32)

    report = load_prompts([path], encode=encode, max_tokens=5).report
    assert (report.rows, report.questions, report.duplicates, len(calls)) == (700, 7, 693, 7)


def test_a_huge_question_is_too_long_without_being_tokenised(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "huge.jsonl", {"question": "x" * (1 << 20) + "y", "answer": 1}, {"question": "z", "answer": 1}
    )
    seen: list[str] = []

    def encode(messages: object) -> Int32Array:
        seen.extend(message.content for message in messages)  # type: ignore[attr-defined]
        return np.zeros(1, dtype=np.int32)

    assert load_prompts([path], encode=encode, max_tokens=5).report.too_long == 1
    assert seen == ["z"]


def test_the_digest_names_the_questions_and_their_order(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    one = load(jsonl(tmp_path / "one.jsonl", *rows)).digest
    assert one == load(jsonl(tmp_path / "again.jsonl", *rows, rows[0])).digest  # a duplicate changes nothing
    assert one != load(jsonl(tmp_path / "turned.jsonl", *reversed(rows))).digest
    assert one != load(jsonl(tmp_path / "other.jsonl", rows[0], {"question": "b", "answer": "3"})).digest


def test_columns_are_the_first_rows_and_part_of_the_digest(tmp_path: Path) -> None:
    first: dict[str, object] = {"question": "a", "answer": "1", "level": 3}
    second: dict[str, object] = {"question": "a", "answer": "1", "level": 4}

    def with_columns(name: str, *rows: dict[str, object]) -> PromptSet:
        return load_prompts(
            [jsonl(tmp_path / name, *rows)], encode=one_token_per_word, max_tokens=10, wanted=Wanted(columns=True)
        )

    one = with_columns("one.jsonl", first, second)
    assert json.loads(one.prompts[0].columns) == first | {"data_source": "one"}
    assert one.prompts[0].asked == ("a", one.prompts[0].columns)
    source: dict[str, object] = {"data_source": "s"}
    digests = [with_columns(f"{level}.jsonl", row | source).digest for level, row in ((3, first), (4, second))]
    assert digests[0] != digests[1]


def test_what_an_environment_tells_ends_the_question_and_is_no_part_of_its_id(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def load_told(text: str) -> PromptSet:
        def tell(rows: Sequence[tuple[str, PromptRow]]) -> list[str]:
            asked.append([prompt_id for prompt_id, _ in rows])
            return [text if row.reference == "1" else "" for _, row in rows]

        files = [
            jsonl(tmp_path / "one.jsonl", {"question": "a b", "answer": "1"}, {"question": "c", "answer": "2"}),
            jsonl(tmp_path / "two.jsonl", {"question": "a b", "answer": "1"}, {"question": "d e f", "answer": "1"}),
        ]
        return load_prompts(files, encode=one_token_per_word, max_tokens=4, tell=tell)

    told = load_told(" x y")
    assert [(one.question, one.told, len(one.tokens)) for one in told.prompts] == [("a b x y", " x y", 4), ("c", "", 1)]
    assert [one.id for one in told.prompts] == [prompt_id_of("a b", "1"), prompt_id_of("c", "2")]
    assert asked == [[prompt_id_of("a b", "1"), prompt_id_of("c", "2")], [prompt_id_of("d e f", "1")]]
    assert (told.report.too_long, told.report.sizes) == (1, (2, 0)), "d e f x y is longer than 4"
    assert told.digest != load_told(" x z").digest


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows"),
        ([{"question": "a b c d", "answer": "1"}, {"question": "a b c d e", "answer": "1"}], "the shortest has 4"),
        ([{"question": "a", "answer": ""}], "1 without reference"),
        ([{"question": "", "answer": "1"}], "1 without question"),
    ],
)
def test_a_dataset_without_a_usable_question_is_refused(
    tmp_path: Path, rows: list[dict[str, str]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(jsonl(tmp_path / "none.jsonl", *rows), max_tokens=3)
