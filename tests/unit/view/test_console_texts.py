"""Pages of evaluations, of what dynamic sampling dropped, of scores with parts, and of what was drawn from a pool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from rlep.view.pages import Query, evaluation, group, step
from rlep.view.pool_pages import pool_of
from rlep.view.pool_places import PoolPlaces
from rlep.view.run_files import RunPlace
from tests.unit.view.page_checks import Found


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (
            {
                "rollout/prompts": 192,
                "selection/discarded": 160,
                "rollout/accuracy": 0.0625,
                "selection/accuracy": 0.34,
            },
            "Of 192 groups that were sampled, 160 were dropped by dynamic sampling and have no rows here. "
            "Correct fresh responses: 6.2 % of all, 34 % of those below.",
        ),
        (
            {"rollout/prompts": 8, "selection/discarded": 8, "rollout/accuracy": 0.0},
            "Of 8 groups that were sampled, 8 were",
        ),
        ({"rollout/prompts": 32, "selection/discarded": 160, "rollout/accuracy": 0.34}, ""),  # of an older version
    ],
)
def test_a_step_says_what_dynamic_sampling_dropped(tmp_path: Path, metrics: Mapping[str, float], text: str) -> None:
    line = {"step": 3, "wall_s": 1.0, "metrics": metrics}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    shown = step(RunPlace("a", tmp_path), 3, Query())
    assert text in shown
    assert ("dynamic sampling" in shown) is bool(text)


def test_a_group_shows_scores_and_their_parts_and_does_without(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    file, place = tmp_path / "a" / "rollouts" / "step-000001.parquet", RunPlace("a", tmp_path / "a")
    table = pq.read_table(file).drop_columns(["score", "parts"])
    pq.write_table(table, file)
    assert "<span>score <b>" not in group(place, 1, 0, Query())
    parts = [json.dumps({"format": 1.0, "<b>": 0.5})] * len(table)
    table = table.append_column("score", pa.array([0.25] * len(table), pa.float32()))
    pq.write_table(table.append_column("parts", pa.array(parts)), file)
    text = group(place, 1, 0, Query())
    assert (
        "<span>score <b>0.25</b></span><span>parts <code>{&#34;format&#34;: 1.0, &#34;&lt;b&gt;&#34;: 0.5}</code></span>"
        in text
    )


def test_the_pool_of_a_run_shows_the_texts_of_what_was_drawn(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    for file in (tmp_path / "a" / "rollouts").glob("*.tokens.parquet"):
        table = pq.read_table(file)
        texts = [f"answer {at} of {file.name}" for at in range(len(table))]
        questions = [f"what is {one[:6]}?" for one in table["prompt_id"].to_pylist()]
        table = table.drop_columns(["text", "question"]).append_column("text", pa.array(texts))
        pq.write_table(table.append_column("question", pa.array(questions)), file)
    place = RunPlace("a", tmp_path / "a")
    rows = [row for row in Found(pool_of(place, PoolPlaces([], []))).rows if row and row[0].startswith("what is ")]
    assert rows
    assert all(row[1].startswith("answer ") for row in rows)
    for file in (tmp_path / "a" / "rollouts").glob("*.tokens.parquet"):
        file.unlink()
    assert "what is " not in pool_of(place, PoolPlaces([], []))


def evaluated(run: Path, step: int, correct: Mapping[str, Sequence[bool]], extracted: str | None = "7") -> None:
    """An evaluation of some questions, a sample for each verdict."""
    rows = [
        {
            "prompt_id": name,
            "data_source": "x",
            "question": f"what is {name}?",
            "reference": "7",
            "sample": number,
            "response": "seven",
            "extracted": extracted,
            "status": "correct" if right else "wrong",
            "tokens": 3,
        }
        for name, verdicts in correct.items()
        for number, right in enumerate(verdicts)
    ]
    (run / "samples").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), run / "samples" / f"step-{step:06d}.parquet")


def test_evaluations_of_different_n_are_compared_over_the_samples_that_both_have(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    evaluated(tmp_path, 0, {"same": [True, False], "better": [False, False]})
    evaluated(
        tmp_path, 8, {"same": [True, False] + 6 * [True], "better": [True, False] + 6 * [False], "new": [True] * 8}
    )
    text = evaluation(RunPlace("a", tmp_path), 8, None, Query())
    assert "1 of 3 questions changed since step 0, in the 2 samples of each that both evaluations have" in text
    rows = Found(text).rows
    assert ["what is better? samples", "1 of 8", "0 of 2", "+1"] in rows
    assert ["what is same? samples", "7 of 8", "1 of 2", ""] in rows
    assert ["what is new? samples", "8 of 8", "–", ""] in rows


def test_an_evaluation_without_any_extracted_answer_is_shown(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    evaluated(tmp_path, 0, {"a": [True, False]}, extracted=None)
    text = evaluation(RunPlace("a", tmp_path), 0, "a", Query())
    assert ["what is a? samples", "1 of 2", "–", ""] in Found(text).rows
    assert "answer <code>–</code>" in text
    assert "does not hold" not in text


@pytest.mark.parametrize("digits", [10, 400, 5000])
def test_an_address_with_too_many_digits_is_not_found(client: TestClient, digits: int) -> None:
    for path in ("steps/{}", "steps/1/groups/{}", "evaluations/{}"):
        assert client.get("/runs/runs~a/" + path.format("9" * digits)).status_code == 404
    assert client.get("/api/runs/runs~a/steps/" + "9" * digits).status_code == 404
    assert client.get(f"/pools/{'9' * digits}/any").status_code == 404


@pytest.fixture
def mathematical(runs: Path, tmp_path: Path) -> RunPlace:
    """A run whose group 0 of step 1 has formulas, and a crashed reward."""
    shutil.copytree(runs / "a", tmp_path / "a")
    directory = tmp_path / "a" / "rollouts"
    texts = pq.read_table(directory / "step-000001.tokens.parquet")
    rows = texts.to_pylist()
    for at, row in enumerate(rows):
        row |= {
            "question": "Find $x^2$.",
            "text": f"It is $\\frac{{1}}{{{at + 1}}}$, sample {at}.",
            "prompt": "<|user|>Find $x^2$.<|assistant|>",
        }
    pq.write_table(pa.Table.from_pylist(rows, texts.schema), directory / "step-000001.tokens.parquet")
    verdicts = pq.read_table(directory / "step-000001.parquet")
    rows = verdicts.to_pylist()
    first = next(row for row in rows if row["group"] == 0 and row["member"] == 0)
    first |= {"status": "crashed", "reason": "ValueError: <b>seven</b>"}
    schema = verdicts.schema.set(verdicts.schema.names.index("reason"), pa.field("reason", pa.string()))
    pq.write_table(pa.Table.from_pylist(rows, schema), directory / "step-000001.parquet")
    return RunPlace("a", tmp_path / "a")


def test_a_group_has_mathematics_the_prompt_as_the_model_saw_it_and_reasons(mathematical: RunPlace) -> None:
    text = group(mathematical, 1, 0, Query())
    assert "Find <math " in text
    assert "<mfrac>" in text
    assert "Find $x^2$.</pre>" in text  # raw, one click away
    prompt = text.partition("The prompt as the model saw it")[2].partition("</details>")[0]
    assert "&lt;|user|&gt;Find $x^2$.&lt;|assistant|&gt;" in prompt
    assert "ValueError: &lt;b&gt;seven&lt;/b&gt;" in text


def test_two_responses_are_compared_and_members_filtered_by_status(mathematical: RunPlace) -> None:
    text = group(mathematical, 1, 0, Query(pair=(0, 1)))
    assert "From response 0 to response 1" in text
    assert "<del>0.</del>" in text
    assert "<ins>1.</ins>" in text
    assert "From response" not in group(mathematical, 1, 0, Query(pair=(0, 99)))
    crashed = group(mathematical, 1, 0, Query(status="crashed"))
    assert "Fresh responses (1)" in crashed
    assert "Replays (0)" in crashed


def test_groups_are_searched_by_text_and_status(mathematical: RunPlace) -> None:
    assert " of 4 groups" in step(mathematical, 1, Query(q="SAMPLE 0"))
    assert ">1 of 4 groups" in step(mathematical, 1, Query(q="sample 0."))
    assert ">0 of 4 groups" in step(mathematical, 1, Query(q="no such words"))
    assert ">1 of 4 groups" in step(mathematical, 1, Query(status="crashed"))
