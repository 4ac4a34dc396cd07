"""Evaluation behind its ports: figures by hand, paired requests, every sample on disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlep.core.errors import VerifierError
from rlep.driver.evaluate import evaluate_policy, write_samples
from rlep.metrics.catalogue import evaluation_metrics, metric_for
from tests.unit.driver.driver_fakes import Scene, scene_of
from tests.unit.driver.driver_values import prompts_of

AIME = prompts_of(2, prefix="aime", source="aime")
AMC = prompts_of(1, prefix="amc", source="amc")


def scripted(order: int | None = None) -> Scene:
    """AIME: 3 of 4 and 0 of 4 right; AMC: 2 of 4."""
    scene = scene_of(order=order)
    scene.verifiers.verdicts = {
        AIME[0].id: ["correct", "wrong", "correct", "correct"],
        AIME[1].id: ["wrong", "timeout", "no_answer", "wrong"],
        AMC[0].id: ["wrong", "correct", "wrong", "correct"],
    }
    return scene


async def test_figures_by_hand() -> None:
    evaluated = await evaluate_policy(scripted().run, (*AIME, *AMC), 4)
    rows = {row.data_source: row for row in evaluated.report.sources}
    assert list(rows) == ["aime", "amc", "all"]
    assert [rows[name].avg.value for name in rows] == pytest.approx([3 / 8, 1 / 2, 5 / 12])
    assert [rows[name].best.value for name in rows] == pytest.approx([1 / 2, 1, 2 / 3])
    # pass@2 = 1 - C(n - c, 2) / C(n, 2): 3 of 4 gives 1, 2 of 4 gives 1 - 1/6
    assert [rows[name].passes[2].value for name in rows] == pytest.approx([1 / 2, 5 / 6, (1 + 0 + 5 / 6) / 3])


@pytest.mark.parametrize("order", [0, 1, 2])
async def test_order_of_completions_does_not_matter(order: int) -> None:
    plain = await evaluate_policy(scripted().run, AIME, 4)
    shuffled = await evaluate_policy(scripted(order=order).run, AIME, 4)
    assert shuffled.report.to_json() == plain.report.to_json()
    ids = [[member.sample_id for member in members] for members in shuffled.samples]
    assert ids == [[f"evaluate/{prompt.id}/{n}" for n in range(4)] for prompt in AIME]


async def test_other_policies_get_the_same_requests() -> None:
    first, second = scripted(), scripted()
    second.generators.version, second.generators.weights = 9, b"trained"
    await evaluate_policy(first.run, AIME, 4)
    await evaluate_policy(second.run, AIME, 4)
    asked = [[(request.id, request.seed) for request in scene.generators.asked] for scene in (first, second)]
    assert asked[0] == asked[1]
    assert len({seed for _, seed in asked[0]}) == 8


async def test_scores_and_parts_have_figures_and_columns_of_their_own(tmp_path: Path) -> None:
    scene = scripted()
    scene.verifiers.scores = {
        AIME[0].id: [(1.0, {"format": 1.0}), (0.5, {"format": 0.0}), (1.0, {}), (1.0, {})],
        AIME[1].id: [(0.25, {"format": 0.5}), (None, {}), (None, {}), (0.75, {})],
    }
    evaluated = await evaluate_policy(scene.run, AIME, 4)
    (row,) = evaluated.report.to_json()
    assert (row["avg"], row["score"], row["parts"]) == (3 / 8, (3.5 / 4 + 1 / 4) / 2, {"format": 0.5})
    assert evaluated.report.table()[0]["score"].startswith("56.2 [")
    values = evaluation_metrics([row])
    assert (values["evaluation/aime/score"], values["evaluation/aime/part/format"]) == (0.5625, 0.5)
    assert metric_for("evaluation/aime/part/best").name == "evaluation/<data_source>/part/<part>"
    write_samples(tmp_path / "samples.parquet", evaluated, str)
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert [(one["score"], one["parts"]) for one in rows[3:6]] == [(1.0, "{}"), (0.25, '{"format": 0.5}'), (None, "{}")]


async def test_every_sample_is_a_row(tmp_path: Path) -> None:
    scene = scripted()
    scene.generators.version = 7
    evaluated = await evaluate_policy(scene.run, AIME, 4)
    path = tmp_path / "samples" / "step-000007.parquet"
    write_samples(path, evaluated, lambda tokens: f"{len(tokens)} tokens")
    rows = pq.read_table(path).to_pylist()
    assert [(row["question"], row["sample"]) for row in rows] == [(f"aime{q}", n) for q in (0, 1) for n in range(4)]
    assert [row["status"] for row in rows][3:6] == ["correct", "wrong", "timeout"]
    assert rows[0]["extracted"] == "2"
    assert rows[1]["extracted"] is None
    assert not {"score", "parts", "ends"} & rows[0].keys()
    for row, member in zip(rows, (m for members in evaluated.samples for m in members), strict=True):
        assert (row["tokens"], row["response"]) == (len(member.tokens), f"{len(member.tokens)} tokens")
        assert (row["finish_reason"], row["policy_version"]) == (member.finish_reason, 7)
        assert (row["data_source"], row["reference"]) == ("aime", "2")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_samples_that_are_episodes_say_where_their_parts_end(tmp_path: Path) -> None:
    evaluated = await evaluate_policy(scripted().run, AIME, 4)
    first, *others = evaluated.samples[0]
    tokens, mask = np.arange(4, dtype=np.int32), np.array([True, False, False, True])
    played = (replace(first, tokens=tokens, sampled=mask), *others)
    evaluated = replace(evaluated, samples=(played, *evaluated.samples[1:]))
    write_samples(tmp_path / "samples.parquet", evaluated, lambda tokens: f"{len(tokens)} tokens, ")
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert (rows[0]["response"], rows[0]["ends"]) == ("1 tokens, 2 tokens, 1 tokens, ", [10, 20, 30])
    assert rows[0]["tokens"] == 2
    assert {row["ends"] for row in rows[1:]} == {None}


async def test_a_failing_verifier_is_named_and_leaves_no_task() -> None:
    scene = scripted()
    scene.verifiers.fail = VerifierError("no verifier is left")
    with pytest.raises(VerifierError, match="no verifier is left"):
        await evaluate_policy(scene.run, AIME, 4)
    assert asyncio.all_tasks() == {asyncio.current_task()}
