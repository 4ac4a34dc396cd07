"""A training run over a real run directory: what it writes, and that being killed anywhere changes none of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlep.config.schema import Config
from rlep.core.errors import DataError, LearnerLost, WeightsLost
from rlep.core.jsonl import read_lines
from rlep.driver.checkpoint import Checkpoint
from tests.unit.driver.driver_fakes import Killed, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import P, batch_bytes, config_of, evaluations, prompt_set, prompts_of, untimed

TRAIN = prompt_set(10)
COMPUTED = ("generated", "scored", "trained")
HELD_OUT = prompts_of(1, prefix="held", source="aime")


def new_scene(config: Config | None = None) -> Scene:
    """Fresh fakes over one and the same pool content: what a new process finds."""
    return scene_of(config or config_of(), pool=filled_pool(World(), TRAIN.prompts))


async def trained(directory: Path, scene: Scene) -> Checkpoint:
    """Train as a process of its own would."""
    return await scene.train(directory, TRAIN, HELD_OUT)


def events(directory: Path) -> list[str]:
    """Names of what happened."""
    return [line["event"] for line in read_lines(directory / "events.jsonl")]


def kept(directory: Path) -> list[str]:
    """Checkpoints on disk."""
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    """A run of four steps that nothing happened to."""
    directory, scene = tmp_path_factory.mktemp("run") / "whole", new_scene()
    asyncio.run(trained(directory, scene))
    return directory, scene


def test_evaluates_at_the_beginning_every_so_often_and_at_the_end(undisturbed: tuple[Path, Scene]) -> None:
    directory, _ = undisturbed
    assert [(row["step"], row["n"]) for row in evaluations(directory)] == [(0, 2), (2, 2), (4, 4)]
    lines = dict(untimed(directory))
    assert [step for step, metrics in lines.items() if "evaluation/aime/avg" in metrics] == [1, 3]
    assert lines[3]["evaluation/aime/samples"] == 4
    assert sorted(path.name for path in (directory / "samples").iterdir()) == [
        f"step-{step:06d}.parquet" for step in (0, 2, 4)
    ]


def test_line_k_is_of_version_k_and_the_prompts_follow_epochs(undisturbed: tuple[Path, Scene]) -> None:
    directory, scene = undisturbed
    lines = untimed(directory)
    assert [(step, line["weights/version"], line["prompts/epoch"]) for step, line in lines] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 2, 1),  # 10 prompts, 4 a step: two steps an epoch
        (3, 3, 1),
    ]
    assert scene.weights.versions == [0, 1, 2, 3, 4]
    asked = [request for request in scene.generators.asked if request.id.startswith("train/")]
    assert len({request.seed for request in asked}) == len(asked) == 4 * P * 3


def test_times_of_evaluation_and_checkpoint_are_recorded(undisturbed: tuple[Path, Scene]) -> None:
    lines = {line["step"]: line["metrics"] for line in read_lines(undisturbed[0] / "metrics.jsonl")}
    assert [step for step, metrics in lines.items() if "time/evaluate" in metrics] == [1, 3]
    assert [step for step, metrics in lines.items() if "time/checkpoint" in metrics] == [1, 2, 3]  # of the step before


def test_keeps_the_newest_checkpoints(undisturbed: tuple[Path, Scene]) -> None:
    assert kept(undisturbed[0]) == ["step-000003", "step-000004"]
    assert events(undisturbed[0])[0] == "run_started"
    assert events(undisturbed[0])[-1] == "run_finished"


async def test_saves_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    scene = new_scene(config_of(checkpoint={"every": 3, "keep": 5}))
    final = await trained(tmp_path, scene)
    assert kept(tmp_path) == ["step-000003", "step-000004"]
    assert (final.path.name, final.state.step) == ("step-000004", 4)
    assert (final.model / "state").read_bytes() == scene.learner.state


async def test_evaluation_only_at_the_ends_or_not_at_all(tmp_path: Path) -> None:
    await trained(tmp_path / "ends", new_scene(config_of(evaluation={"every": 0, "final_samples": None})))
    assert [(row["step"], row["n"]) for row in evaluations(tmp_path / "ends")] == [(0, 2), (4, 2)]
    await new_scene().train(tmp_path / "none", TRAIN)
    assert evaluations(tmp_path / "none") == []


@pytest.mark.parametrize("kill_at", [None, 40, 75, 100])
async def test_evaluates_after_the_step_that_reaches_a_point_of_compute(
    tmp_path: Path, undisturbed: tuple[Path, Scene], kill_at: int | None
) -> None:
    counts = [line["metrics"] for line in read_lines(undisturbed[0] / "metrics.jsonl")]
    generated, scored, trained_tokens = ([row[f"compute/{name}_tokens"] for row in counts] for name in COMPUTED)
    compute = [a + b + 3 * c for a, b, c in zip(generated, scored, trained_tokens, strict=True)]
    marks = [compute[0] + 1, compute[2]]  # within the second step, and at the end of the third
    config = config_of(evaluation={"compute": marks, "first_samples": 3})
    scene = new_scene(config)
    if kill_at is not None:
        scene.world.kill_at = kill_at
        with pytest.raises(Killed):
            await trained(tmp_path, scene)
    await trained(tmp_path, new_scene(config))
    # 3 samples at the start, 4 at the last point and after the last step
    assert [(row["step"], row["n"]) for row in evaluations(tmp_path)] == [(0, 3), (2, 2), (3, 4), (4, 4)]


async def test_points_of_compute_that_were_changed_count_from_what_was_reached(
    tmp_path: Path, undisturbed: tuple[Path, Scene]
) -> None:
    counts = [line["metrics"] for line in read_lines(undisturbed[0] / "metrics.jsonl")]
    columns = ([row[f"compute/{name}_tokens"] for row in counts] for name in COMPUTED)
    compute = [a + b + 3 * c for a, b, c in zip(*columns, strict=True)]
    await trained(tmp_path, new_scene(config_of(run={"steps": 2}, evaluation={"compute": [1, 2, 3]})))
    await trained(tmp_path, new_scene(config_of(evaluation={"compute": [compute[2], 2 * compute[3]]})))
    assert [row["step"] for row in evaluations(tmp_path)] == [0, 1, 2, 3, 4]


EVENTS = 119
KILLS = [(1, kill_at) for kill_at in sorted({*range(0, EVENTS, 8), *range(23, 33)})]
KILLS += [(3, kill_at) for kill_at in range(1, 110, 13)]
"""(steps between checkpoints, number of the event that does not happen any more)."""


@pytest.mark.parametrize(("every", "kill_at"), KILLS)
async def test_a_run_killed_anywhere_and_continued_is_the_undisturbed_run(
    tmp_path: Path, undisturbed: tuple[Path, Scene], every: int, kill_at: int
) -> None:
    whole, expected = undisturbed
    config = config_of(checkpoint={"every": every})
    first = new_scene(config)
    first.world.kill_at = kill_at
    with pytest.raises(Killed):
        await trained(tmp_path, first)
    second = new_scene(config)
    await trained(tmp_path, second)
    assert untimed(tmp_path) == untimed(whole)
    assert evaluations(tmp_path) == evaluations(whole)
    assert second.learner.state == expected.learner.state
    assert second.learner.updates == expected.learner.updates == 8
    again = [batch_bytes(batch) for batch in second.learner.batches]
    assert (
        again
        == [batch_bytes(batch) for batch in expected.learner.batches][len(expected.learner.batches) - len(again) :]
    )


async def test_a_clock_that_jumps_by_an_hour_changes_nothing(
    tmp_path: Path, undisturbed: tuple[Path, Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, jumps = time.time, itertools.cycle([1800.0, 3600.0, -3600.0])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    scene = new_scene()
    await trained(tmp_path, scene)
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert scene.learner.state == undisturbed[1].learner.state
    lines = read_lines(tmp_path / "metrics.jsonl")
    walls = [line["wall_s"] for line in lines]
    assert walls == sorted(walls)
    assert min(value for line in lines for name, value in line["metrics"].items() if name.startswith("time/")) >= 0
    assert min(abs(line["time"] - real()) for line in lines) > 1000  # the clock did jump


async def test_the_kills_cover_the_whole_run(undisturbed: tuple[Path, Scene]) -> None:
    happened = [entry.split()[0] for entry in undisturbed[1].world.happened]
    hit = {happened[kill_at] for every, kill_at in KILLS if every == 1}
    assert hit == set(happened)
    assert len(happened) == EVENTS


async def test_killed_twice(tmp_path: Path, undisturbed: tuple[Path, Scene]) -> None:
    for kill_at in (60, 45):
        scene = new_scene(config_of(checkpoint={"every": 1}))
        scene.world.kill_at = kill_at
        with pytest.raises(Killed):
            await trained(tmp_path, scene)
    await trained(tmp_path, new_scene())
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert evaluations(tmp_path) == evaluations(undisturbed[0])


@pytest.mark.parametrize("at", ["score/0", "update/0", "publish/0", "update/3", "publish/2", "save/2", "score/7"])
async def test_a_lost_learner_is_restarted_and_restored(
    tmp_path: Path, undisturbed: tuple[Path, Scene], at: str
) -> None:
    scene = new_scene()
    scene.learner.restarts = 1
    scene.world.lose_learner_at = (at,)
    await trained(tmp_path, scene)
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert evaluations(tmp_path) == evaluations(undisturbed[0])
    assert scene.learner.state == undisturbed[1].learner.state
    happened = events(tmp_path)
    assert [happened.count(name) for name in ("run_started", "run_resumed", "actor_lost", "actor_restarted")] == [1] * 4


@dataclass(eq=False)
class Forgetful(World):
    """Loses all generators' weights at some events, each once, e.g. ``generate/1``: the second rollout."""

    at: tuple[str, ...] = ()

    async def event(self, name: str, detail: object = "") -> None:
        number = self.count(name)
        await super().event(name, detail)
        if f"{name}/{number}" in self.at:
            raise WeightsLost("no generator has them")


@pytest.mark.parametrize("every", [1, 2, 9])
async def test_where_no_generator_has_the_weights_any_more_they_are_sent_again_and_no_step_is_made_twice(
    tmp_path: Path, undisturbed: tuple[Path, Scene], every: int
) -> None:
    # In the evaluation before step 0, before and within rollouts: 56 responses in all, without those that came twice.
    world = Forgetful(at=("completion/0", "generate/2", "completion/20", "completion/40", "completion/60"))
    scene = scene_of(config_of(checkpoint={"every": every}), pool=filled_pool(world, TRAIN.prompts))
    await trained(tmp_path, scene)
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert evaluations(tmp_path) == evaluations(undisturbed[0])
    assert scene.learner.state == undisturbed[1].learner.state
    assert scene.world.count("update") == undisturbed[1].world.count("update")
    assert events(tmp_path).count("actor_restarted") == 0
    assert sum("sending them again" in note for note in scene.progress.notes) == 5


async def test_a_learner_lost_while_it_saves_for_generators_that_lost_the_weights_is_restarted(
    tmp_path: Path, undisturbed: tuple[Path, Scene]
) -> None:
    world = Forgetful(at=("generate/2",), lose_learner_at=("save/0",))
    scene = scene_of(config_of(checkpoint={"every": 9}), pool=filled_pool(world, TRAIN.prompts))
    scene.learner.restarts = 1
    await trained(tmp_path, scene)
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert scene.learner.state == undisturbed[1].learner.state
    assert events(tmp_path).count("actor_restarted") == 1


async def test_where_updates_of_the_step_were_made_meanwhile_the_learner_begins_at_its_checkpoint(
    tmp_path: Path, undisturbed: tuple[Path, Scene]
) -> None:
    scene = scene_of(config_of(), pool=filled_pool(Forgetful(at=("update/3",)), TRAIN.prompts))
    scene.learner.restarts = 1
    await trained(tmp_path, scene)
    assert untimed(tmp_path) == untimed(undisturbed[0])
    assert scene.learner.state == undisturbed[1].learner.state
    assert events(tmp_path).count("actor_restarted") == 1


async def test_a_learner_without_restarts_ends_the_run(tmp_path: Path) -> None:
    scene = new_scene()
    scene.world.lose_learner_at = ("update/1",)
    with pytest.raises(LearnerLost, match=f"out of restarts. Log: {tmp_path}/logs/learner.err$"):
        await trained(tmp_path, scene)
    assert (tmp_path / "logs" / "learner.err").read_text() == "update: rank 1 died\n"


@pytest.mark.parametrize("damage", ["flip", "remove", "torn state", "no manifest"])
@pytest.mark.parametrize("keep", [1, 2])
async def test_a_broken_newest_checkpoint_is_passed_over(
    tmp_path: Path, undisturbed: tuple[Path, Scene], damage: str, keep: int
) -> None:
    first = new_scene(config_of(run={"steps": 3}, checkpoint={"keep": 3}))
    await trained(tmp_path, first)
    newest = tmp_path / "checkpoints" / "step-000003"
    match damage:
        case "flip":
            state = newest / "model" / "state"
            state.write_bytes(bytes([state.read_bytes()[0] ^ 1]) + state.read_bytes()[1:])
        case "remove":
            (newest / "trainer" / "updates").unlink()
        case "torn state":
            (newest / "state.json").write_text('{"step": 3, "da')
        case "no manifest":
            (newest / "files.json").write_text("[]")
    second = new_scene(config_of(checkpoint={"keep": keep}))
    await trained(tmp_path, second)
    assert second.world.happened[0] == "load step-000002"
    assert events(tmp_path).count("checkpoint_refused") == 1
    assert second.learner.state == undisturbed[1].learner.state
    assert [step for step, _ in untimed(tmp_path)] == [0, 1, 2, 3]
    assert kept(tmp_path) == ["step-000003", "step-000004"][2 - keep :]


async def test_a_broken_later_checkpoint_does_not_push_out_the_good_one(tmp_path: Path) -> None:
    await trained(tmp_path, new_scene(config_of(checkpoint={"keep": 3})))
    for step in (3, 4):
        (tmp_path / "checkpoints" / f"step-{step:06d}" / "state.json").unlink()
    second = new_scene(config_of(checkpoint={"keep": 1}))
    second.world.kill_at = 50
    with pytest.raises(Killed):
        await trained(tmp_path, second)
    assert kept(tmp_path)[-1] == "step-000003"
    third = new_scene()
    await trained(tmp_path, third)
    assert third.world.happened[0] == "load step-000003"


async def test_a_finished_run_started_again_changes_nothing(tmp_path: Path) -> None:
    await trained(tmp_path, new_scene())
    before = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "evaluations.jsonl")}
    scene = new_scene()
    final = await trained(tmp_path, scene)
    assert final.state.step == 4
    assert scene.world.happened == ["load step-000004"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


async def test_more_prompts_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a step uses 4 prompts, the dataset has 3"):
        await new_scene().train(tmp_path, prompt_set(3))
