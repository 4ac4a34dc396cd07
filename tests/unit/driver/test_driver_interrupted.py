"""A run that is told to stop: it saves its last complete step where it can, says where it will go on, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlep.core.errors import DeadlineExceeded, JudgeAway, LearnerLost
from rlep.core.types import Completion, Float32Array, Prompt, SequenceBatch, Verdict
from rlep.driver.checkpoint import Checkpoint
from rlep.driver.sft import sft_step
from tests.unit.driver.driver_fakes import FakeVerifiers, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import BASE, config_of, evaluations, prompt_set, prompts_of, untimed
from tests.waiting import until

TRAIN = prompt_set(10)
HELD_OUT = prompts_of(1, prefix="held", source="aime")
KINDS = ["plain", "streamed", "sft"]
EVERY = {"every": 3, "keep": 9}


def new_scene(kind: str, **sections: Mapping[str, Any]) -> Scene:
    config = config_of(update={"stream": kind == "streamed"}, **{"checkpoint": EVERY, **sections})
    return scene_of(config, pool=filled_pool(World(), TRAIN.prompts))


async def trained(directory: Path, scene: Scene, kind: str) -> Checkpoint:
    """Train as a process of its own would."""
    return await scene.train(directory, TRAIN, HELD_OUT, sft_step if kind == "sft" else None)


async def interrupted(directory: Path, scene: Scene, kind: str, stop: Callable[[list[str]], bool]) -> None:
    """Train, and be told to stop when ``stop`` says so of what has happened."""
    training = asyncio.create_task(trained(directory, scene, kind))
    while not stop(scene.world.happened):
        assert not training.done(), training.exception()
        await asyncio.sleep(0)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert asyncio.all_tasks() == {asyncio.current_task()}


def reached(events: int) -> Callable[[list[str]], bool]:
    """So many events have happened."""
    return lambda happened: len(happened) >= events


def asked(step: int) -> Callable[[list[str]], bool]:
    """The step has asked for its replays."""
    return lambda happened: f"sample {step}" in happened


def saved_steps(directory: Path) -> list[int]:
    return sorted(int(path.name[-6:]) for path in (directory / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Scene]]:
    """Of each kind a run of four steps that nothing happened to."""
    base = tmp_path_factory.mktemp("whole")
    scenes = {kind: new_scene(kind) for kind in KINDS}
    for kind, scene in scenes.items():
        asyncio.run(trained(base / kind, scene, kind))
    return {kind: (base / kind, scene) for kind, scene in scenes.items()}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_interrupted_anywhere_and_continued_is_the_undisturbed_run(
    tmp_path: Path, whole: dict[str, tuple[Path, Scene]], kind: str
) -> None:
    directory, expected = whole[kind]
    events = len(expected.world.happened)
    for after in range(1, events - 1, 2 if kind == "sft" else 5):
        here = tmp_path / str(after)
        first = new_scene(kind)
        await interrupted(here, first, kind, reached(after))
        second = new_scene(kind)
        await trained(here, second, kind)
        assert second.learner.state == expected.learner.state, after
        assert untimed(here) == untimed(directory), after
        assert evaluations(here) == evaluations(directory), after


@pytest.mark.parametrize("kind", KINDS)
async def test_the_last_complete_step_is_saved_and_named(tmp_path: Path, kind: str) -> None:
    for done in (1, 2):
        scene = new_scene(kind, evaluation={"every": 0})
        here = tmp_path / str(done)
        # The next step has asked for its replays; its updates are to come.
        await interrupted(here, scene, kind, asked(done))
        assert saved_steps(here) == [done]  # otherwise one only every 3 steps
        assert scene.progress.notes[-2:] == [
            f"writing a checkpoint after step {done} …",
            f"stopped: the same command continues the run after step {done} of 4",
        ]


@pytest.mark.parametrize("step", [1, 2])
async def test_a_step_whose_checkpoint_was_about_to_begin_is_saved(tmp_path: Path, step: int) -> None:
    """Step 1 while the learner copies its state; step 2 also while step 1 is still being written."""
    scene = new_scene("plain", checkpoint={"every": 1, "keep": 9}, evaluation={"every": 0})
    await interrupted(tmp_path, scene, "plain", lambda happened: happened.count("save") == step)
    assert saved_steps(tmp_path) == [*range(1, step + 1)]
    assert [line for line, _ in untimed(tmp_path)] == [*range(step)]
    assert scene.progress.notes[-1] == f"stopped: the same command continues the run after step {step} of 4"


async def test_a_step_that_waits_for_the_checkpoint_before_it_is_saved(tmp_path: Path) -> None:
    scene = new_scene("plain", checkpoint={"every": 1, "keep": 9}, evaluation={"every": 0})
    opened, written, waiting = asyncio.Event(), scene.learner.written, asyncio.Event()

    async def slow() -> None:
        waiting.set()
        await opened.wait()
        await written()

    scene.learner.written = slow  # type: ignore[method-assign]
    training = asyncio.create_task(trained(tmp_path, scene, "plain"))
    await waiting.wait()
    await until(lambda: len(untimed(tmp_path)) == 2, "the second step", poll=0)
    training.cancel()
    await asyncio.sleep(0)
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert saved_steps(tmp_path) == [1, 2]
    assert scene.progress.notes[-1] == "stopped: the same command continues the run after step 2 of 4"


async def test_an_evaluation_that_was_interrupted_is_made_up_for(tmp_path: Path) -> None:
    first = new_scene("plain")
    await interrupted(
        tmp_path,
        first,
        "plain",
        lambda happened: "publish 2" in happened and happened[-1].startswith("completion eval"),
    )
    assert saved_steps(tmp_path) == [2]
    assert [step for step, _ in untimed(tmp_path)] == [0]
    second = new_scene("plain")
    await trained(tmp_path, second, "plain")
    assert [(row["step"], row["n"]) for row in evaluations(tmp_path)] == [(0, 2), (2, 2), (4, 4)]
    assert second.world.happened[:3] == ["load step-000002", "publish 2", "generate 2"]


async def test_in_the_middle_of_updates_the_run_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    scene = new_scene("plain")
    await interrupted(tmp_path, scene, "plain", lambda happened: sum(e.startswith("update") for e in happened) == 3)
    assert saved_steps(tmp_path) == []
    assert scene.progress.notes[-1] == "stopped: the same command continues the run from its beginning"


async def test_a_learner_that_is_lost_while_it_saves_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    scene = new_scene("plain")

    async def save(directory: Path) -> None:
        raise LearnerLost("rank 1 died")

    scene.learner.save = save  # type: ignore[method-assign]
    await interrupted(tmp_path, scene, "plain", lambda happened: "sample 1" in happened)
    assert scene.progress.notes[-2:] == [
        "no checkpoint was written: rank 1 died",
        "stopped: the same command continues the run from its beginning",
    ]


async def test_a_run_stopped_while_a_lost_learner_starts_again_saves_no_weights_that_it_has_not_trained(
    tmp_path: Path,
) -> None:
    scene = new_scene("plain")
    score = scene.learner.score

    async def lost_in_the_second_step(batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        if "sample 1" in scene.world.happened:
            raise LearnerLost("rank 1 died")
        return await score(batch, rollout=rollout)

    async def restart() -> None:
        scene.learner.state = BASE
        await scene.world.event("restart")
        await asyncio.sleep(60)

    scene.learner.score = lost_in_the_second_step  # type: ignore[method-assign]
    scene.learner.restart = restart  # type: ignore[method-assign]
    await interrupted(tmp_path, scene, "plain", lambda happened: "restart" in happened)
    assert saved_steps(tmp_path) == []  # checkpoints are every 3 steps


class AwayFrom(FakeVerifiers):
    """Its server cannot be reached once a step asks for its replays."""

    def __init__(self, world: World, step: int) -> None:
        super().__init__(world)
        self._step = step

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        if asked(self._step)(self.world.happened):
            self.fail = JudgeAway("the server behind rewards:judged could not be reached for 300 s")
        return await super().grade(prompt, completions)


async def test_an_error_of_the_rollout_loses_no_complete_step(tmp_path: Path) -> None:
    class Stuck(FakeVerifiers):
        async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
            if asked(2)(self.world.happened):
                raise DeadlineExceeded("rollout: 3 of 12 completions missing after 3600 s")
            return await super().grade(prompt, completions)

    scene = new_scene("plain")
    scene.verifiers = Stuck(scene.world)
    with pytest.raises(DeadlineExceeded, match="3 of 12 completions missing"):
        await trained(tmp_path, scene, "plain")
    assert saved_steps(tmp_path) == [2]  # checkpoints are every 3 steps
    early = new_scene("plain")
    early.verifiers = Stuck(early.world)
    early.world.happened.append("sample 2")
    with pytest.raises(DeadlineExceeded):
        await trained(tmp_path / "early", early, "plain")
    assert early.progress.notes == []  # nothing was made, so nothing is said of going on


async def test_a_judge_that_is_away_ends_the_run_after_its_last_complete_step_and_the_run_goes_on_from_there(
    tmp_path: Path,
) -> None:
    scene = new_scene("plain")
    scene.verifiers = AwayFrom(scene.world, step=2)
    with pytest.raises(JudgeAway, match="could not be reached for 300 s"):
        await trained(tmp_path, scene, "plain")
    assert saved_steps(tmp_path) == [2]
    assert scene.progress.notes[-1].startswith("stopped: the same command continues the run after step 2 of ")
    await trained(tmp_path, new_scene("plain"), "plain")
    assert (await trained(tmp_path / "undisturbed", new_scene("plain"), "plain")).state == (
        await trained(tmp_path, new_scene("plain"), "plain")
    ).state
