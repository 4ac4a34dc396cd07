"""The files of ``rollouts/``: their rows against the step that they are of, and what a restored run leaves of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlep.config.schema import Config
from rlep.core.jsonl import read_lines
from rlep.core.types import Int32Array
from rlep.driver.context import Step
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.wings.rollout_files import RolloutFiles, choose_groups, keep_newest, list_groups
from rlep.metrics.logs import EventLog
from tests.unit.driver.driver_fakes import Killed, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import (
    BASE,
    TOKENIZER,
    G,
    M,
    P,
    config_of,
    logprobs_of,
    prompt_set,
    prompts_of,
    untimed,
)

TRAIN = prompt_set(10)
HELD_OUT = prompts_of(1, prefix="held", source="aime")
FACTS = Facts("train", "model", TOKENIZER, TRAIN.digest)


def words(tokens: Int32Array) -> str:
    return " ".join(map(str, tokens.tolist()))


def config_at(directory: Path, **rollouts: float | list[str]) -> Config:
    return config_of(run={"directory": str(directory)}, rollouts=rollouts)


async def one_step(directory: Path, events: EventLog, **rollouts: float | list[str]) -> StepOutcome:
    """Step 0 with its files."""
    config = config_at(directory, **rollouts)
    scene = scene_of(config, pool=filled_pool(World(), TRAIN.prompts))
    async with RolloutFiles(config, words, events) as files:
        return await written_step(files, scene.step())


async def written_step(files: RolloutFiles, step: Step) -> StepOutcome:
    """A step and its files."""
    await files.begin_step(step)
    outcome = await run_step(step, TRAIN.prompts[:P])
    await files.write_step(outcome, {})
    return outcome


async def trained(directory: Path, scene: Scene, *, written: bool = True) -> None:
    """A run as a process of its own would do it, killed where the world says so."""
    store = RunDirectory(directory, scene.config, FACTS)
    try:
        async with RolloutFiles(scene.config, words, store.events) as files:

            async def wait(_: Step) -> None:
                await files.finished()  # a step of fakes takes less time than a file

            hooks: dict[str, Any] = {"before": [wait, files.begin_step], "after": [files.write_step]} if written else {}
            await scene.training(TRAIN, HELD_OUT, store, **hooks).run()
    except Killed:
        pass
    finally:
        store.close()


async def test_each_trajectory_has_a_row_with_the_numbers_of_the_step(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        outcome = await one_step(tmp_path, events)
    rows = pq.read_table(tmp_path / "rollouts" / "step-000000.parquet").to_pylist()
    assert len(rows) == P * (G + M)
    assert [(row["group"], row["member"], row["replayed"]) for row in rows] == [
        (group, member, member >= G) for group in range(P) for member in range(G + M)
    ]
    assert [row["update"] for row in rows] == [0] * 10 + [1] * 10  # two groups of five an update
    members = [member for one in outcome.mini_batches for group in one.groups for member in group.members]
    assert [row["content_id"] for row in rows] == [member.content_id for member in members]
    assert [row["status"] for row in rows] == [member.verdict.status for member in members]
    assert [row["reward"] for row in rows] == [1.0 if member.correct else -1.0 for member in members]
    for start in range(0, len(rows), G + M):
        group = rows[start : start + G + M]
        rewards = np.array([row["reward"] for row in group])
        if rewards.std():
            expected = (rewards - rewards.mean()) / rewards.std(ddof=1)
            assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-5)
    learner = [logprobs_of(one.batch, BASE) for one in outcome.mini_batches]
    ends = np.cumsum([len(member.tokens) for member in members])[:-1]
    by_member = np.split(np.concatenate(learner), ends)
    assert [row["logprob"] for row in rows] == pytest.approx([float(part.mean()) for part in by_member], abs=1e-6)
    stored = [-0.25 if row["replayed"] else -0.5 for row in rows]
    assert [row["sampler_logprob"] for row in rows] == pytest.approx(stored)
    gaps = [float(np.abs(part - value).max()) for part, value in zip(by_member, stored, strict=True)]
    assert [row["gap_max"] for row in rows] == pytest.approx(gaps, abs=1e-6)


async def test_token_files_have_texts_ids_and_logprobs(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        outcome = await one_step(tmp_path, events)
    rows = pq.read_table(tmp_path / "rollouts" / "step-000000.tokens.parquet").to_pylist()
    members = [member for one in outcome.mini_batches for group in one.groups for member in group.members]
    assert [row["text"] for row in rows] == [words(member.tokens) for member in members]  # all four groups of 32
    assert [row["token_ids"] for row in rows] == [member.tokens.tolist() for member in members]
    assert {(row["question"], row["reference"]) for row in rows} == {(f"q{i}", "2") for i in range(P)}
    replay = rows[G]
    assert replay["sampler_logprobs"] == [-0.25] * 3
    assert all(len(row["logprobs"]) == len(row["token_ids"]) for row in rows)


async def test_half_of_the_groups_are_drawn_by_prompt_and_half_are_extreme(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        groups = list(list_groups(await one_step(tmp_path, events, groups=0)))
    assert not (tmp_path / "rollouts" / "step-000000.tokens.parquet").exists()
    [drawn] = choose_groups(groups, 1, seed=5, step=0)
    others = [one for one in groups if one is not drawn]
    longest = max(others, key=lambda one: max(row.tokens for row in one.rows))
    if max(row.tokens for row in drawn.rows) > max(row.tokens for row in longest.rows):
        longest = max(others, key=lambda one: max(row.gap_max or 0 for row in one.rows))
    assert {id(one) for one in choose_groups(groups, 2, seed=5, step=0)} == {id(drawn), id(longest)}
    assert len(choose_groups(groups, 32, seed=5, step=0)) == P


async def test_watched_groups_are_written_on_top_and_change_no_other_choice(tmp_path: Path) -> None:
    watch = [TRAIN.prompts[2].id, TRAIN.prompts[P].id]  # the second one is not in this step
    held = {}
    for count in range(P + 1):
        for name, watched in (("plain", []), ("watched", watch)):
            directory = tmp_path / f"{name}-{count}"
            directory.mkdir()
            with EventLog(directory / "events.jsonl") as events:
                await one_step(directory, events, groups=count, watch=watched)
            path = directory / "rollouts" / "step-000000.tokens.parquet"
            rows = pq.read_table(path).to_pylist() if path.exists() else []
            held[name, count] = list(dict.fromkeys(row["group"] for row in rows))
    assert [len(held["plain", count]) for count in range(P + 1)] == list(range(P + 1))
    for count in range(P + 1):
        assert held["watched", count] == sorted({*held["plain", count], 2})


async def test_a_resumed_run_has_the_files_of_an_undisturbed_one(tmp_path: Path) -> None:
    def scene(directory: Path) -> Scene:
        return scene_of(config_at(directory), pool=filled_pool(World(), TRAIN.prompts))

    whole = tmp_path / "whole"
    await trained(whole, scene(whole))
    cut = tmp_path / "cut"
    first = scene(cut)
    first.world.kill_at = 70
    await trained(cut, first)
    (cut / "rollouts").mkdir(exist_ok=True)
    stale = [cut / "rollouts" / name for name in ("step-000009.parquet", ".step-000009.parquet.part")]
    for path in stale:
        path.write_bytes(b"of a step that is done again")
    await trained(cut, scene(cut))
    assert not any(path.exists() for path in stale)
    names = sorted(path.name for path in (whole / "rollouts").iterdir())
    assert names == sorted(f"step-{k:06d}{kind}.parquet" for k in range(4) for kind in ("", ".tokens"))
    assert sorted(path.name for path in (cut / "rollouts").iterdir()) == names
    for name in names:
        pair = [pq.read_table(at / "rollouts" / name) for at in (whole, cut)]
        plain = [t.drop_columns(["created"]) if "created" in t.column_names else t for t in pair]
        assert plain[0].equals(plain[1]), name


async def test_files_change_no_metric(tmp_path: Path) -> None:
    for name, written in (("with", True), ("without", False)):
        scene = scene_of(config_at(tmp_path / name), pool=filled_pool(World(), TRAIN.prompts))
        await trained(tmp_path / name, scene, written=written)
    assert untimed(tmp_path / "with") == untimed(tmp_path / "without")
    assert not (tmp_path / "without" / "rollouts").exists()


async def test_a_file_that_cannot_be_written_is_an_event(tmp_path: Path) -> None:
    (tmp_path / "rollouts").write_text("a file in the directory's place")
    with EventLog(tmp_path / "events.jsonl") as events:
        await one_step(tmp_path, events)
    happened = read_lines(tmp_path / "events.jsonl")
    assert [(line["event"], line["step"]) for line in happened] == [("rollouts_skipped", 0)]
    assert "FileExistsError" in happened[0]["error"]


async def test_a_step_whose_files_are_late_is_left_out(tmp_path: Path) -> None:
    config, go = config_at(tmp_path), threading.Event()

    def slow(tokens: Int32Array) -> str:
        assert go.wait(60)
        return words(tokens)

    scene = scene_of(config, pool=filled_pool(World(), TRAIN.prompts))
    with EventLog(tmp_path / "events.jsonl") as events:
        async with RolloutFiles(config, slow, events) as files:
            await written_step(files, scene.step(0))
            await written_step(files, scene.step(1))
            go.set()
    assert [(line["event"], line["step"]) for line in read_lines(tmp_path / "events.jsonl")] == [
        ("rollouts_skipped", 1)
    ]
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == [
        "step-000000.parquet",
        "step-000000.tokens.parquet",
    ]


def test_the_oldest_token_files_go_first(tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"step-{step:06d}.tokens.parquet").write_bytes(b"x" * 10)
        (tmp_path / f"step-{step:06d}.parquet").write_bytes(b"x" * 10)
    keep_newest(tmp_path, 25)
    assert sorted(path.name for path in tmp_path.glob("*.tokens.parquet")) == [
        f"step-{step:06d}.tokens.parquet" for step in (2, 3)
    ]
    assert len(list(tmp_path.iterdir())) == 6  # the rows are kept
