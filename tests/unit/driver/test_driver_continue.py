"""What a run that is continued may change, and which checkpoint it keeps as its best."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, ConfigError
from rlep.core.jsonl import read_lines
from rlep.data.prompts import PromptSet
from rlep.driver.checkpoint import Checkpoint, read_checkpoint
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.train import Training
from tests.unit.driver.driver_fakes import Scene, World, data_of, filled_pool, scene_of
from tests.unit.driver.driver_values import config_of, prompt_set, prompts_of
from tests.waiting import until

TRAIN = prompt_set(10)
OTHER = prompt_set(10, prefix="other")
HELD_OUT = prompts_of(1, prefix="held", source="aime")


def new_scene(config: Config, train: PromptSet = TRAIN) -> Scene:
    return scene_of(config, pool=filled_pool(World(), train.prompts))


async def trained(
    directory: Path,
    scene: Scene,
    *,
    train: PromptSet = TRAIN,
    pool: str = "pool",
    template: str = "",
) -> Checkpoint:
    """Train as a process of its own would."""
    store = RunDirectory(directory, scene.config, Facts("train", "model", "tok", train.digest))
    run = replace(scene.run, template_digest=template)
    try:
        return await Training(run, scene.trainers, data_of(train, HELD_OUT, pool), store).run()
    finally:
        store.close()


@pytest.mark.parametrize(
    ("name", "changed", "keys"),
    [("data", {"train": OTHER}, {"data": {"train": "other.parquet"}}), ("pool", {"pool": "grown"}, {})],
)
async def test_what_is_accepted_goes_on_and_is_said(
    tmp_path: Path, name: str, changed: dict[str, Any], keys: dict[str, Any]
) -> None:
    await trained(tmp_path, new_scene(config_of(run={"steps": 1})))
    train = changed.get("train", TRAIN)
    with pytest.raises((CheckpointError, ConfigError), match=rf'checkpoint\.accept = \["{name}"\]|data\.train'):
        await trained(tmp_path, new_scene(config_of(**keys), train), **changed)
    scene = new_scene(config_of(checkpoint={"accept": [name]}, **keys), train)
    final = await trained(tmp_path, scene, **changed)
    assert final.state.step == 4
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert any(f"continuing with another {name}" in note for note in scene.progress.notes)
    # The new checkpoints are of the new data: from here on nothing has to be accepted.
    await trained(tmp_path, new_scene(config_of(run={"steps": 5}, **keys), train), **changed)


async def test_a_checkpoint_of_another_chat_template_is_refused_unless_told(tmp_path: Path) -> None:
    await trained(tmp_path, new_scene(config_of(run={"steps": 1})), template="old")
    with pytest.raises(
        CheckpointError, match=r'template_digest old, now it is new; checkpoint\.accept = \["template"\]'
    ):
        await trained(tmp_path, new_scene(config_of()), template="new")
    told = new_scene(config_of(checkpoint={"accept": ["template"]}))
    assert (await trained(tmp_path, told, template="new")).state.template_digest == "new"
    await trained(tmp_path, new_scene(config_of(run={"steps": 5})), template="new")


async def test_the_checkpoint_with_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    metric = "evaluation/aime/avg"
    await trained(tmp_path, new_scene(config_of(run={"steps": 8}, checkpoint={"keep": 1, "best": metric})))
    # Evaluations after 2, 4, 6 and 8 steps stand in the lines of steps 1, 3, 5 and 7.
    lines = {line["step"] + 1: line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")}
    scores = {step: metrics[metric] for step, metrics in lines.items() if metric in metrics}
    assert sorted(scores) == [2, 4, 6, 8]
    best = max(scores, key=lambda step: (scores[step], step))
    kept = sorted(int(path.name[-6:]) for path in (tmp_path / "checkpoints").iterdir())
    assert kept == sorted({best, 8})
    assert read_checkpoint(tmp_path / "checkpoints" / f"step-{best:06d}").state.score == scores[best]
    told = [line for line in read_lines(tmp_path / "events.jsonl") if line["event"] == "checkpoint_saved"]
    assert {line["step"]: line["score"] for line in told if line["score"] is not None} == scores


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("evaluation/aime/average", "unknown metric"),
        ("collection/correct", "unknown metric"),
        ("group/replays", "is a list of numbers"),
        ("evaluation/amc/avg", "evaluated are aime"),
        ("evaluation/all/avg", "evaluated are aime"),  # one source: no row for all
        ("evaluation/aime/pass/3", r"of evaluation\.samples = 2 pass@k is known for k = 1, 2"),
    ],
)
async def test_a_best_that_no_step_could_have_is_refused(tmp_path: Path, metric: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"checkpoint\.best = '{metric}'.*{reason}"):
        await trained(tmp_path, new_scene(config_of(checkpoint={"best": metric})))


async def test_training_goes_on_while_a_checkpoint_is_written_and_its_end_waits(tmp_path: Path) -> None:
    scene = new_scene(config_of(run={"steps": 2}, evaluation={"every": 0}))
    may_write, write = asyncio.Event(), scene.learner.written

    async def written() -> None:
        await may_write.wait()
        await write()

    scene.learner.written = written  # type: ignore[method-assign]
    training = asyncio.create_task(trained(tmp_path, scene))
    # Two steps of two updates: the second while the first is not yet written.
    await until(lambda: scene.world.count("update") == 4 or training.done(), "two steps", deadline=60)
    assert not training.done(), training.exception()
    assert scene.world.count("saved") == 0
    may_write.set()
    final = await training
    assert final.state.step == 2
    assert (final.model / "state").read_bytes() == scene.learner.state
