"""Pages that say more than numbers: what dynamic sampling dropped, parts of scores, texts of what was drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.console.pages import group, step
from rlep.console.pool_pages import pool_of
from rlep.console.pool_places import PoolPlaces
from rlep.console.run_files import RunPlace
from tests.unit.console.page_checks import Found


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
            "Correct fresh responses: 0.0625 of all, 0.34 of those below.",
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
    shown = step(RunPlace("a", tmp_path), 3, "all", 0)
    assert text in shown
    assert ("dynamic sampling" in shown) is bool(text)


def test_a_group_shows_scores_and_their_parts_and_does_without(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    file, place = tmp_path / "a" / "rollouts" / "step-000001.parquet", RunPlace("a", tmp_path / "a")
    table = pq.read_table(file).drop_columns(["score", "parts"])
    pq.write_table(table, file)
    assert ", score " not in group(place, 1, 0)
    parts = [json.dumps({"format": 1.0, "<b>": 0.5})] * len(table)
    table = table.append_column("score", pa.array([0.25] * len(table), pa.float32()))
    pq.write_table(table.append_column("parts", pa.array(parts)), file)
    text = group(place, 1, 0)
    assert ", score 0.25 <code>{&#34;format&#34;: 1.0, &#34;&lt;b&gt;&#34;: 0.5}</code>" in text


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
